/** The connection of the page to its engine, as esbuild bundles it. */

import assert from "node:assert/strict";
import { test } from "node:test";
import vm from "node:vm";
import { Worker as Thread } from "node:worker_threads";

import { bundle, workerSource } from "../build.mjs";
import { randomModel } from "./models.js";

const MODEL = randomModel();
const LOOK = { id: 1, model: 0, ids: [0, 1, 2], selected: 2, muted: [], effects: true };
const KINDS = ["look", "whole", "effect", "effect", "effect", "effect", "done"];
const script = await bundle("src/engine.js", [workerSource], "page");

/**
 * Connect in a browser with this Worker and send a request. Return the kinds of replies.
 * @param {unknown} Worker @param {Record<string, unknown>} [more] globals
 */
async function connected(Worker, more = {}) {
  const context = vm.createContext({ Blob, URL, MessageChannel, performance, atob, Worker, ...more });
  const { connect } = vm.runInContext(`${script}; page`, context);
  const kinds = /** @type {string[]} */ ([]);
  await new Promise((resolve) => {
    const engine = connect([MODEL], (/** @type {any} */ reply) => {
      kinds.push(reply.kind);
      if (reply.kind === "done") resolve(undefined);
    });
    engine.send(LOOK);
  });
  return kinds;
}

test("the bundled worker answers", async () => {
  const threads = /** @type {Thread[]} */ ([]);
  class BrowserWorker {
    onmessage = /** @type {(event: any) => void} */ (() => {});
    constructor() {
      // the few differences between a browser's worker and a thread of Node
      const names = `const { parentPort } = require("node:worker_threads");
        globalThis.self = { postMessage: (data) => parentPort.postMessage(data) };
        parentPort.on("message", (data) => self.onmessage({ data }));`;
      this.thread = new Thread(names + workerText, { eval: true });
      this.thread.on("message", (data) => this.onmessage({ data }));
      threads.push(this.thread);
    }
    /** @param {unknown} data */
    postMessage(data) {
      this.thread.postMessage(data);
    }
  }
  const workerText = await bundle("src/worker.js");
  const createObjectURL = (/** @type {Blob} */ { size }) => assert.equal(size, Buffer.byteLength(workerText));
  assert.deepEqual(await connected(BrowserWorker, { URL: { createObjectURL } }), KINDS);
  assert.equal(threads.length, 1);
  await Promise.all(threads.map((thread) => thread.terminate()));
});

test("without workers, the page itself works", async () => {
  const refused = class { constructor() { throw new Error("SecurityError"); } };
  assert.deepEqual(await connected(refused), KINDS);
  assert.deepEqual(await connected(undefined), KINDS);
});

test("a worker that the policy blocks after its start is replaced", async () => {
  class Blocked {
    onerror = /** @type {(event: any) => void} */ (() => {});
    constructor() {
      setTimeout(() => this.onerror({ preventDefault() {} }), 1);
    }
    terminate() {}
  }
  assert.deepEqual(await connected(Blocked), KINDS);
});
