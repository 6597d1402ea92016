import assert from "node:assert/strict";
import { test } from "node:test";

import { argmax, choose, entropy, softmax, weigh } from "../src/filters.js";

const ALL = { temperature: 1, top_k: 0, top_p: 1, min_p: 0 };

const logits = (...probabilities: number[]) => probabilities.map(Math.log);

function assertClose(found: ArrayLike<number>, expected: number[]) {
  assert.equal(found.length, expected.length);
  for (const [i, value] of expected.entries()) {
    assert.ok(Math.abs(found[i] - value) < 1e-12, `${Array.from(found)} is not ${expected}`);
  }
}

test("softmax and entropy", () => {
  assertClose(softmax(logits(0.5, 0.25, 0.25)), [0.5, 0.25, 0.25]);
  assertClose(softmax([1000, -1000]), [1, 0]);
  assert.ok(Math.abs(entropy([0.5, 0.5, 0]) - Math.LN2) < 1e-12);
});

test("temperature 0 keeps the first of the most likely tokens, and any other temperature works", () => {
  assert.deepEqual(Array.from(weigh([1, 3, 3], { ...ALL, temperature: 0 })), [0, 1, 0]);
  assertClose(weigh(logits(0.25, 0.5), { ...ALL, temperature: 0.5 }), [0.25, 1]);
  assert.deepEqual(Array.from(weigh([0, 1], { ...ALL, temperature: 1e-320 })), [0, 1]);
});

test("each filter zeroes tokens, and the first of equals stay", () => {
  const four = logits(0.1, 0.4, 0.1, 0.4);
  assertClose(weigh(four, { ...ALL, top_k: 3 }), [0.25, 1, 0, 1]);
  assertClose(weigh(four, { ...ALL, top_k: 4 }), [0.25, 1, 0.25, 1]);
  assertClose(weigh(four, { ...ALL, top_p: 0.7 }), [0, 1, 0, 1]);
  assertClose(weigh([0, 0, 0, 0], { ...ALL, top_p: 0.5 }), [1, 1, 0, 0]);
  assertClose(weigh(four, { ...ALL, min_p: 0.3 }), [0, 1, 0, 1]);
});

test("choose inverts the cumulative distribution", () => {
  const weights = Float64Array.of(0, 1, 0, 3);
  assert.deepEqual([0, 0.2499, 0.25, 0.999999].map((uniform) => choose(weights, uniform)), [1, 1, 3, 3]);
  assert.throws(() => choose(new Float64Array(2), 0.5), /no token has a positive weight/);
});

test("a vocabulary may be large", () => {
  const logits = new Float32Array(200_000);
  logits[150_000] = 1000;
  assert.equal(argmax(logits), 150_000);
  assert.equal(choose(weigh(logits, { ...ALL, min_p: 0.5 }), 0.5), 150_000);
});
