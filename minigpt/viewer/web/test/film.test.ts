import assert from "node:assert/strict";
import { test } from "node:test";

import { greatestChange, lanes, learned, learningCurve } from "../src/film.js";
import { softmax } from "../src/filters.js";
import { Vocabulary } from "../src/letters.js";

const { letters } = new Vocabulary("char", [..."aAn .x"]).encode("An a. x");

/** What a model of two heads computed: the probability of each token, and its attention to the token `at`. */
const look = (surprise: number[], more: object = {}): any => ({
  from: 0, selected: 1, muted: [], ids: [1, 2, 3], surprise: [NaN, ...surprise], logits: new Float32Array([0, 2, 1]),
  attention: new Float32Array([0.9, 0.1, 0.5, 0.5]), effects: new Map(), ...more,
});

test("the curve of a letter is the probability that each moment gave to its token, at the chosen temperature", () => {
  const half = (logits: Float32Array) => softmax(logits.map((logit) => logit / 2));
  const { values, token } = learningCurve([look([]), null, look([], { logits: [0, 0, 0] })], null, letters[2], 2, half);
  const [x, y] = [Math.exp(1), Math.exp(0.5)];
  assert.equal(token, 2);
  assert.ok(Math.abs(values[0] - y / (1 + x + y)) < 1e-6, String(values));
  assert.ok(Number.isNaN(values[1]) && Math.abs(values[2] - 1 / 3) < 1e-6, String(values));
});

test("at the end of the text, the curve is that of the token that is the likeliest at the end, with all heads", () => {
  const looks = [look([], { logits: [2, 0, 0] }), look([])];
  const { values, token } = learningCurve(looks, looks[1], undefined, -1, softmax);
  assert.equal(token, 1);
  const sum = Math.exp(2) + 2, total = 1 + Math.exp(2) + Math.exp(1);
  assert.ok(Math.abs(values[0] - 1 / sum) < 1e-6 && Math.abs(values[1] - Math.exp(2) / total) < 1e-6, String(values));
  const muted = [look([], { logits: [0, 2, 0], muted: [0] })], end = look([], { logits: new Float32Array([0, 0, 9]) });
  assert.equal(learningCurve(muted, end, undefined, -1, softmax).token, 2);
  assert.deepEqual(learningCurve([look([])], null, undefined, -1, softmax).values, [NaN], "not 0 if it is unknown");
  assert.deepEqual(learningCurve([null], null, undefined, -1, softmax), { values: [NaN], token: -1 });
});

test("the tokens of a letter multiply, and tokens before the window are unknown", () => {
  const { letters } = new Vocabulary("byte").encode("aä");
  const looks = [look([0.5, 0.5]), look([0.5, 0.5], { from: 1 }), look([0.5])];
  assert.deepEqual(learningCurve(looks, null, letters[1], -1, softmax).values, [0.25, NaN, NaN]);
});

test("a lane follows a head that matters at the end to the token that it attends to there", () => {
  const without = (logits: number[]) => new Float32Array(logits);
  const effects = new Map([[0, without([0, 1.9, 1])], [1, without([0, 0, 3])]]);
  const earlier = look([], { attention: new Float32Array([1, 0, 0.25, 0.75]) });
  const end = look([], { attention: new Float32Array([0.9, 0.1, 0.125, 0.875]), effects });
  assert.deepEqual(lanes([earlier, null, end], end), [{ head: 1, position: 1, shares: [0.75, NaN, 0.875] }]);
  const muted = look([], { attention: new Float32Array([0.9, 0.1, 0.25, 0.75]), muted: [1] });
  assert.deepEqual(lanes([muted], end), [{ head: 1, position: 1, shares: [0.75] }], "lanes stay while heads are off");
  assert.deepEqual(lanes([look([])], null), [], "nothing is known about the end");
});

test("a letter is learned at the first moment after which it is nearly always likely", () => {
  const looks = (...chances: number[]) => chances.map((chance) => look([chance]));
  const at = (...chances: number[]) => learned(looks(...chances), letters)[1];
  assert.equal(at(0.1, 0.6, 0.7, 0.8), 2 / 4);
  assert.equal(at(0.9, 0.1, 0.1, 0.8), 4 / 4);
  assert.equal(at(0.6, 0.7, 0.4, 0.9, 0.8, 0.9, 0.9), 1 / 7, "one relapse of seven");
  assert.equal(at(0.9, 0.9, 0.4), 0, "never");
  assert.equal(learned(looks(0.9), letters)[0], 0, "nothing predicts the first letter");
});

test("a sentence names a large change, and the head that changed with it", () => {
  const names = {
    letter: "“A”", head: (head: number) => `2·${head}`, at: (p: number) => `“${p}”`,
  };
  const curve = { values: [0.08, 0.1, 0.79, NaN, 0.3], token: 0 };
  const grows = { head: 2, position: 5, shares: [0, 0.01, 0.86, 0.8, 0.1] };
  const other = { head: 3, position: 7, shares: [0, 0.5, 0.4, 0.5, 0.5] };
  const words = "head 2·2 finds “5”: “A” 10% → 79%";
  for (const moment of [0, 1, 2, 3, 4]) { // moments without a large change name the greatest change
    assert.deepEqual(greatestChange(curve, [other, grows], moment, names), { moment: 2, words }, `moment ${moment}`);
  }
  assert.equal(greatestChange(curve, [other], 2, names).words, "“A” 10% → 79%");
  assert.equal(greatestChange({ ...curve, values: [0.1, 0.2, NaN, 0.1, 0.2] }, [grows], 2, names).words, "");
  const lost = { ...curve, values: [0.9, 0.1, 0.1, 0.9] }, falls = { ...grows, shares: [0.9, 0.2, 0.2, 0.9] };
  assert.equal(greatestChange(lost, [falls], 1, names).words, "head 2·2 loses “5”: “A” 90% → 10%");
  assert.equal(greatestChange(lost, [falls], 3, names).words, "head 2·2 finds “5”: “A” 10% → 90%");
});
