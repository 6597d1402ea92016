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
