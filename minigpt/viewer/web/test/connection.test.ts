/** The connection of the page to its engine, as esbuild bundles it. */

import assert from "node:assert/strict";
import { test } from "node:test";
import vm from "node:vm";
import { Worker as Thread } from "node:worker_threads";

import { bundle, workerSource } from "../build.mjs";
import { randomModel } from "./models.js";

const MODEL = randomModel();
const LOOK = { id: 1, kind: "look", model: 0, ids: [0, 1, 2], selected: 2, muted: [] };
const EFFECT = { ...LOOK, id: 2, kind: "effect", layer: 1, head: 0 };
const KINDS = ["look", "effect"];
const script = await bundle("src/connection.ts", [workerSource], "page");

/** Connect in a browser with this Worker, and send each request when the one before is answered. Return the kinds of
 * replies.
 * @param more globals */
async function connected(Worker: unknown, more: Record<string, unknown> = {}, requests: object[] = [LOOK, EFFECT]) {
  const context = vm.createContext({ Blob, URL, MessageChannel, performance, atob, Worker, ...more });
  const { connect } = vm.runInContext(`${script}; page`, context);
  const kinds: string[] = [];
  await new Promise((resolve) => {
    const engine = connect([MODEL], (reply: any) => {
      if (kinds.push(reply.kind) === requests.length) resolve(undefined);
      else engine.send(requests[kinds.length]);
    });
    engine.send(requests[0]);
  });
  return kinds;
}

test("the bundled worker answers", async () => {
  const threads: Thread[] = [];
  class BrowserWorker {
    thread: Thread;
    onmessage: (event: any) => void = () => {};
    constructor() {
      // the few differences between a browser's worker and a thread of Node
      const names = `const { parentPort } = require("node:worker_threads");
        globalThis.self = { postMessage: (data) => parentPort.postMessage(data) };
        parentPort.on("message", (data) => self.onmessage({ data }));`;
      this.thread = new Thread(names + workerText, { eval: true });
      this.thread.on("message", (data) => this.onmessage({ data }));
      threads.push(this.thread);
    }
    postMessage(data: unknown) {
      this.thread.postMessage(data);
    }
  }
  const workerText = await bundle("src/worker.ts");
  const createObjectURL = ({ size }: Blob) => assert.equal(size, Buffer.byteLength(workerText));
  assert.deepEqual(await connected(BrowserWorker, { URL: { createObjectURL, revokeObjectURL() {} } }), KINDS);
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
    onerror: (event: any) => void = () => {};
    constructor() {
      setTimeout(() => this.onerror({ preventDefault() {} }), 1);
    }
    terminate() {}
  }
  assert.deepEqual(await connected(Blocked), KINDS);
});

test("a worker that dies leaves its unanswered request to the page", async () => {
  const requests = [{ ...LOOK, kind: "logits" }, { ...LOOK, id: 2 }, { ...EFFECT, id: 3, kind: "matrix" }];
  const posted: number[] = [];
  let ends = 0;
  class Mortal {
    onmessage = (null as ((event: any) => void) | null);
    onerror = (null as ((event: any) => void) | null);
    constructor() {
      setTimeout(() => this.onmessage?.({ data: "ready" }), 1);
    }
    /** @param data the models, then requests */
    postMessage(data: any) {
      posted.push(data.id);
      if (data.kind === "logits") this.onmessage?.({ data: { id: data.id, kind: "logits" } });
      if (data.id !== 2) return;
      for (let errors = 0; errors < 2; errors++) this.onerror?.({ preventDefault() {} });
    }
    terminate() {
      ends++;
    }
  }
  assert.deepEqual(await connected(Mortal, {}, requests), ["logits", "look", "matrix"]);
  assert.deepEqual([posted, ends], [[undefined, 1, 2], 1]);
});
