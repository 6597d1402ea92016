/**
 * Bundle the page's scripts and styles. With --check, fail unless the bundles on disk are current.
 *
 * Usage: node build.mjs [--check]
 */

import { readFile, writeFile } from "node:fs/promises";
import { fileURLToPath } from "node:url";

import { build } from "esbuild";

const ROOT = new URL(".", import.meta.url);
/** The folder of page.js and page.css. */
const OUTPUT = new URL("../", ROOT);

/** @type {import("esbuild").BuildOptions} */
const SETTINGS = {
  absWorkingDir: fileURLToPath(ROOT),
  bundle: true,
  charset: "utf8",
  format: "iife",
  legalComments: "none",
  logLevel: "warning",
  minify: true,
  target: "es2022",
  write: false,
};

/**
 * Return the text of a bundle.
 * @param {string} entry
 * @param {import("esbuild").Plugin[]} [plugins]
 * @param {string} [globalName] for what the entry exports
 */
export async function bundle(entry, plugins = [], globalName = undefined) {
  const { outputFiles } = await build({ ...SETTINGS, entryPoints: [entry], plugins, globalName });
  return /** @type {import("esbuild").OutputFile[]} */ (outputFiles)[0].text;
}

/**
 * Bundle the worker to a string that the page imports as "worker:source".
 * @type {import("esbuild").Plugin}
 */
export const workerSource = {
  name: "worker-source",
  setup({ onResolve, onLoad }) {
    onResolve({ filter: /^worker:source$/ }, ({ path }) => ({ path, namespace: "worker" }));
    onLoad({ filter: /.*/, namespace: "worker" }, async () => {
      return { contents: await bundle("src/worker.ts"), loader: "text" };
    });
  },
};

async function main() {
  const check = process.argv.includes("--check");
  const files = { "page.js": await bundle("src/main.ts", [workerSource]), "page.css": await bundle("src/page.css") };
  for (const [name, text] of Object.entries(files)) {
    const path = new URL(name, OUTPUT);
    if (!check) {
      await writeFile(path, text);
    } else if (text !== (await readFile(path, "utf8").catch(() => ""))) {
      console.error(`${name} is not current: run \`npm run build\` in minigpt/viewer/web and commit the result`);
      process.exitCode = 1;
      return;
    }
  }
}

if (process.argv[1] === fileURLToPath(import.meta.url)) await main();
