/** What the panels say and draw, without a DOM. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { softmax } from "../src/filters.js";
import { Vocabulary } from "../src/letters.js";
import {
  attentionShares, effectOf, inWindow, letterOf, likeliest, quoted, surprises, turns,
} from "../src/views.js";
import { Writer } from "../src/writer.js";
import type { Look } from "../src/answers.js";

const BYTES = new Vocabulary("byte");

const look = (properties: object): Look => ({ from: 0, whole: undefined, ...properties } as any);

const letters = (text: string) => BYTES.encode(text).letters;

test("a writer completes the letter of a clicked byte, and then stops", () => {
  const writer = new Writer(BYTES);
  assert.equal(writer.add(0xe4), "");
  assert.equal(writer.mode, "step");
  assert.deepEqual([writer.add(0xb8), writer.add(0xad)], ["", "中"]);
  assert.deepEqual([writer.mode, writer.bytes], ["idle", []]);
});

test("a writer writes on after a letter, and drops the bytes of one when it stops", () => {
  const writer = new Writer(BYTES);
  writer.start("write");
  const { group } = writer;
  assert.deepEqual([writer.add(0x61), writer.add(0xe4), writer.isWriting], ["a", "", true]);
  writer.stop();
  assert.deepEqual([writer.bytes, writer.mode, writer.group], [[], "idle", ""]);
  writer.start("write");
  assert.notEqual(writer.group, group);
});

test("the attention of a letter is that of its tokens, if the model sees them", () => {
  const attention = Float32Array.of(0, 0, 0, 0.125, 0.25, 0.625); // two heads
  const window = look({ from: 1, selected: 2, ids: [0, 1, 2], attention }); // from the first byte of ä
  const shares = attentionShares(letters("aäbc"), window, 1);
  assert.deepEqual([...shares], [0, 0.375, 0.625, 0]);
});

test("a letter is surprising if its tokens were unlikely", () => {
  const surprise = Float32Array.of(NaN, 0.5, 0.5, 1, 0);
  const nats = -Math.log(0.25) / 6;
  const found = surprises(letters("aäbc"), look({ surprise, ids: [0, 1, 2, 3, 4] }));
  assert.deepEqual([...found].map((x) => x.toFixed(4)), ["0.0000", nats.toFixed(4), "0.0000", "1.0000"]);
  const window = look({ from: 1, surprise: Float32Array.of(NaN), ids: [1] });
  assert.deepEqual([...surprises(letters("ab"), window)], [0, 0]);
});

test("only the letters of the window cost time", () => {
  let seen = 0;
  const all = letters("aä".repeat(1000)), values = inWindow(all, look({ from: 1500, ids: [0, 1, 2] }), () => ++seen);
  assert.deepEqual([values.length, seen, values.indexOf(1)], [2000, 2, 1000]); // the letters a and ä
  assert.deepEqual([1499, 1500, 1501, 1502].map((token) => letterOf(all, token)), [999, 1000, 1001, 1001]);
});

test("a letter is named with its word, if it is in one that is not too long", () => {
  const text = letters(`of Anna,\n${"中".repeat(20)}`);
  assert.deepEqual([3, 2, 7, 8, 9].map((i) => quoted(text, i)), ["“A” of Anna", "“␣”", "“,”", "“↵”", "“中”"]);
  assert.equal(quoted(letters("I am"), 0), "“I”");
});

test("the likeliest letters make room for those that must be shown", () => {
  const probabilities = [0.1, 0.4, 0.3, 0.2];
  assert.deepEqual(likeliest(probabilities, 2), [1, 2]);
  assert.deepEqual(likeliest(probabilities, 2, [0, 0]), [1, 0]);
  assert.deepEqual(likeliest(probabilities, 2, [2]), [1, 2]);
  assert.deepEqual(likeliest(probabilities, 9), [1, 2, 3, 0]);
});

test("a head breaks a prediction if a letter wins that the model expects neither with it nor with all heads", () => {
  const [first, second, third] = [[2, 0, 0], [0, 2, 0], [0, 0, 2]].map((logits) => Float32Array.from(logits));
  const effect = (logits: Float32Array[], whole: Float32Array | undefined) =>
    effectOf(look({ logits: logits[0], whole }), logits[1], softmax);
  const { expected, before, after, winner, share, breaks } = effect([first, second], undefined);
  assert.deepEqual([expected, winner, breaks], [0, 1, true]);
  assert.ok(before === share && share > after);
  assert.equal(effect([first, first], first).breaks, false);
  assert.equal(effect([second, first], first).breaks, false, "the letter of the whole model comes back");
  assert.equal(effect([second, second], first).breaks, false, "it was lost before");
  assert.equal(effect([second, third], first).expected, 0);
});

test("a later head that looks elsewhere when an earlier one is off is named, the greatest loss first", () => {
  const rows = (...attention: number[]) => new Float32Array(attention);
  const effects = new Map([
    [0, { attention: rows(0, 1, 0.25, 0.75, 0.75, 0.25) }],
    [1, { attention: rows(0, 1, 1, 0, 0.5, 0.5) }],
  ]);
  const found = turns(look({ selected: 1, attention: rows(0, 1, 0.75, 0.25, 0.125, 0.875), effects }));
  assert.deepEqual(found, [
    { off: 0, head: 2, from: 1, before: 0.875, to: 0, after: 0.75, lost: 0.625 },
    { off: 0, head: 1, from: 0, before: 0.75, to: 1, after: 0.75, lost: 0.5 },
    { off: 1, head: 2, from: 1, before: 0.875, to: 0, after: 0.5, lost: 0.375 },
  ]);
});
