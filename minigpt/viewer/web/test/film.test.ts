import assert from "node:assert/strict";
import { test } from "node:test";

import { curveOf, eventOf, lanes, learned, storyOf } from "../src/film.js";
import { softmax } from "../src/filters.js";
import { Vocabulary } from "../src/letters.js";

const VOCABULARY = new Vocabulary("char", [..."aAn .x"]);
const { letters, ids } = VOCABULARY.encode("An a. x");

/** What a model of two heads computed: the probability of each token, and its attention to the token `at`. */
const look = (surprise: number[], more: object = {}): any => ({
  from: 0, selected: 1, muted: [], ids: [1, 2, 3], surprise: [NaN, ...surprise], logits: new Float32Array([0, 2, 1]),
  attention: new Float32Array([0.9, 0.1, 0.5, 0.5]), effects: new Map(), ...more,
});

/** What a film asks of the app: looks at its moments, and the last one with all heads on. */
const film = (looks: any[], end: any = null, more: object = {}): any => ({
  film: looks.map((_, moment) => moment), fresh: (moment: number) => looks[moment], answers: { look: () => end },
  state: { letters, ids, selected: 0 }, probabilities: softmax, vocabulary: VOCABULARY, isFilmComplete: true,
  nameOf: (head: number) => `2·${head}`, ...more,
});
const last = { state: { letters, ids, selected: letters.length - 1 } };

test("the curve of a letter is the probability that each moment gave to its token, at the chosen temperature", () => {
  const probabilities = (logits: Float32Array) => softmax(logits.map((logit) => logit / 2));
  const { values, token } = curveOf(film([look([]), null, look([], { logits: [0, 0, 0] })], null, { probabilities }));
  const [x, y] = [Math.exp(1), Math.exp(0.5)];
  assert.equal(token, 2);
  assert.ok(Math.abs(values[0] - y / (1 + x + y)) < 1e-6, String(values));
  assert.ok(Number.isNaN(values[1]) && Math.abs(values[2] - 1 / 3) < 1e-6, String(values));
});

test("at the end of the text, the curve is that of the token that is the likeliest at the end, with all heads", () => {
  const looks = [look([], { logits: [2, 0, 0] }), look([])];
  const { values, token } = curveOf(film(looks, looks[1], last));
  assert.equal(token, 1);
  const sum = Math.exp(2) + 2, total = 1 + Math.exp(2) + Math.exp(1);
  assert.ok(Math.abs(values[0] - 1 / sum) < 1e-6 && Math.abs(values[1] - Math.exp(2) / total) < 1e-6, String(values));
  const muted = [look([], { logits: [0, 2, 0], muted: [0] })], end = look([], { logits: new Float32Array([0, 0, 9]) });
  assert.equal(curveOf(film(muted, end, last)).token, 2);
  assert.deepEqual(curveOf(film([look([])], null, last)).values, [NaN], "not 0 if it is unknown");
  assert.deepEqual(curveOf(film([null], null, last)), { values: [NaN], token: -1 });
});

test("the tokens of a letter multiply, and tokens before the window are unknown", () => {
  const state = { ...new Vocabulary("byte").encode("aä"), selected: 0 };
  const looks = [look([0.5, 0.5]), look([0.5, 0.5], { from: 1 }), look([0.5])];
  assert.deepEqual(curveOf(film(looks, null, { state })).values, [0.25, NaN, NaN]);
});

test("a lane follows a head that matters at the end to the token that it attends to there", () => {
  const without = (logits: number[]) => new Float32Array(logits);
  const effects = new Map([[0, { logits: without([0, 1.9, 1]) }], [1, { logits: without([0, 0, 3]) }]]);
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

test("the event of a film is its largest change, if it is large", () => {
  const at = (...values: number[]) => eventOf({ values, token: 0 });
  assert.deepEqual([at(0.08, 0.1, 0.79, NaN, 0.3), at(0.1, 0.2, NaN, 0.1, 0.2), at(0.9, 0.1, 0.1, 0.8)], [2, -1, 1]);
});

test("a sentence says what a head finds, and what the model would write before and after", () => {
  const moment = (logit: number, share: number, written: string) => look([], {
    logits: new Float32Array([0, logit, 0]), attention: new Float32Array([share, 1 - share, 0.5, 0.5]),
    written: VOCABULARY.encode(written).ids,
  });
  const said = (before: any, after: any, at = 0) => {
    const end = { ...after, effects: new Map([[0, { logits: new Float32Array([9, 0, 0]) }]]) };
    return storyOf(film([before, after], end, { state: { letters, ids: [0, 1], selected: at } })).sentence;
  };
  const none = moment(-3, 0.1, "a."), lost = moment(-3, 0.1, "na x"), found = moment(3, 0.9, "n a");
  assert.equal(said(lost, found), "head 2·0 finds “A” of An. Before: “Ana”, now: “An”.");
  assert.equal(said(none, { ...found, attention: none.attention }), "Before: “Aa”, now: “An”.");
  assert.equal(said({ ...none, written: undefined }, { ...found, attention: none.attention }), "“n” 2% → 91%.");
  assert.equal(said(found, lost), "Before: “An”, now: “Ana”.");
  assert.equal(said(lost, lost), "");
});
