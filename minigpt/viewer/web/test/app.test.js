import assert from "node:assert/strict";
import { test } from "node:test";

import { App } from "../src/app.js";
import { Vocabulary } from "../src/letters.js";
import { recall } from "../src/recorded.js";

const VOCABULARY = new Vocabulary("char", ["a", "b"]);

/** @param {object} config @param {string} text @returns {any} */
const payload = (config, text) => ({
  models: [{ config: { n_layer: 1, n_head: 1, context: 4, ...config }, heads: [] }],
  text,
  selected: text.length - 1,
  head: null,
  sample: {},
});

test("a GPT sees a window of the text, and a recurrent network sees all of it", () => {
  const position = (/** @type {string} */ family) =>
    new App(payload({ family }, "abababab" + "a"), VOCABULARY, () => {}).position(0);
  assert.deepEqual([position("modern").from, position("modern").ids.length], [6, 3]);
  assert.deepEqual([position("lstm").from, position("lstm").ids.length], [0, 9]);
});

test("what interrupts a model inside a character drops its bytes, and Step waits for its letter", () => {
  globalThis.requestAnimationFrame = /** @type {any} */ (() => 0);
  const bytes = new Vocabulary("byte");
  const app = new App(payload({ family: "modern", context: 64 }, "abc def"), bytes, () => {});
  app.set({ sampling: /** @type {any} */ ({ temperature: 0, repetition_penalty: 1 }) });
  app.ask();
  app.continueWith(0xe4); // the first of three bytes
  app.select(2);
  assert.deepEqual([app.unfinished, app.state.text], [[], "abc def"]);
  const logits = new Float32Array(256);
  logits[0x21] = 1000;
  const look = { kind: "look", model: 0, logits, surprise: [], attention: [] };
  const answer = () => app.receive({ ...look, id: app.asked[0].id });
  answer();
  app.select(4);
  app.step();
  app.select(3);
  answer();
  assert.equal(app.state.text, "abc def");
  app.select(6);
  app.step();
  answer();
  answer();
  assert.equal(app.state.text, "abc def!");
});

test("a comparison stays when its models change places", () => {
  globalThis.requestAnimationFrame = /** @type {any} */ (() => 0);
  const two = payload({ family: "modern" }, "ab");
  two.models.push(two.models[0]);
  const app = new App(two, VOCABULARY, () => {});
  app.compare(0, 1);
  app.compare(1, 1);
  assert.deepEqual([app.state.model, app.state.other], [1, 0]);
  app.compare(1, 1);
  assert.equal(app.state.other, null);
});

test("the chosen head comes back after a look at a model without it", () => {
  globalThis.requestAnimationFrame = /** @type {any} */ (() => 0);
  const two = payload({ family: "modern" }, "ab");
  two.models[0].heads = [[{}]];
  two.models.push({ config: { family: "lstm" }, heads: [] });
  const app = new App({ ...two, head: [0, 0] }, VOCABULARY, () => {});
  app.compare(1, null);
  assert.equal(app.state.head, null);
  app.compare(0, null);
  assert.deepEqual(app.state.head, { layer: 0, head: 0 });
});

test("recorded numbers answer for the text of the page, and for no other text", () => {
  const top = [0, 1, 0].map((id) => [[id, 0.75]]);
  /** @type {any} */
  const model = { name: "big", config: {}, heads: [], recorded: { skipped: 0, top, actual: [], effects: [] } };
  const start = { ids: [0, 1, 0], selected: 2 };
  /** @param {number[]} ids */
  const kinds = (ids, at = ids.length - 1) => {
    const replies = recall(model, 2, { id: 1, model: 0, ids, at, from: 0 }, start);
    return replies.map((reply) => reply.kind);
  };
  assert.deepEqual(kinds([0, 1, 0]), ["look", "done"]);
  assert.deepEqual(kinds([0, 1]), ["look", "done"]);
  assert.deepEqual(kinds([1, 1, 0]), ["error"]);
  assert.deepEqual(kinds([0, 1, 1], 1), ["look", "done"]);
  assert.deepEqual(kinds([0, 1, 0, 1]), ["error"]);
});
