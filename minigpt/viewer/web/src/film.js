/** What the film of a run shows, from what the model of each moment computed for the text. Without a DOM. */

import { argmax, softmax } from "./filters.js";
import { effectOf } from "./prediction.js";
import { attentionRow, chance } from "./shading.js";

/**
 * @typedef {import("./app.js").Look} Look
 * @typedef {import("./letters.js").Letter} Letter
 * @typedef {{head: number, position: number, shares: number[]}} Lane   head: layer * n_head + head; position: of the
 *   token that it attends to at the end; shares: its attention to this token at each moment, NaN if not computed
 * @typedef {{values: number[], token: number}} Curve   the probability of a letter at each moment, NaN if not computed
 */

/** A letter is learned at a probability of one half, if later moments fall below it at most this often. */
const LEARNED = 0.5, RELAPSES = 0.2;
/** A change of the prediction, and of a head's attention, that is worth a sentence. */
const LARGE = 0.25, FINDS = 0.3;
/** A head has a lane if the prediction falls by so much without it. */
const MATTERS = 0.05, LANES = 3;

/** The learning curve of the letter that came, or of the token that the last model with all heads expects.
 * @param {(Look | null)[]} looks of each moment @param {Letter | undefined} next the letter after the selected one
 * @param {number} token the token of this letter, or -1 if it has several or did not come
 * @param {(logits: Float32Array) => Float64Array} probabilities at the chosen temperature @returns {Curve} */
export function learningCurve(looks, next, token, probabilities) {
  const last = [...looks].reverse().find(Boolean);
  if (!next) token = last ? argmax(last.whole ?? last.logits) : -1;
  const value = (/** @type {Look} */ look) =>
    next && token < 0 ? chance(look, next) : probabilities(look.logits)[token];
  return { values: looks.map((look) => (look ? value(look) : NaN)), token };
}

/** The heads that matter most at the end, and when each of them came to attend to what it attends to there. While heads
 * are off, and until the end has answered, they are those of before.
 * @param {(Look | null)[]} looks of each moment, with effects of the last @param {Lane[]} [before] @returns {Lane[]} */
export function lanes(looks, before = []) {
  const end = looks.at(-1);
  if (!end) return before;
  const matters = end.muted.length ? before : mattering(end).map((head) => ({ head, position: strongest(end, head) }));
  return matters.map(({ head, position }) => {
    const share = (/** @type {Look | null} */ look) =>
      look?.selected === end.selected ? attentionRow(look, head)[position] : NaN;
    return { head, position, shares: looks.map(share) };
  });
}

/** The index of the token that a head attends to most. @param {Look} look @param {number} head */
function strongest(look, head) {
  return argmax(attentionRow(look, head));
}

/** The heads without which the prediction falls most. @param {Look} look */
function mattering(look) {
  const drops = [...look.effects].map(([head, logits]) => {
    const { before, after } = effectOf(look, logits, softmax);
    return { head, drop: before - after };
  });
  const large = drops.filter(({ drop }) => drop >= MATTERS).sort((a, b) => b.drop - a.drop);
  return large.slice(0, LANES).map(({ head }) => head);
}

/** The index of the moment at which each letter was learned, or looks.length if never, or if that cannot be known.
 * @param {(Look | null)[]} looks @param {Letter[]} letters */
export function learned(looks, letters) {
  return letters.map((letter) => {
    const chances = looks.map((look) => (look ? chance(look, letter) : NaN));
    if (chances.some(Number.isNaN)) return looks.length;
    let first = looks.length, relapses = 0;
    for (let m = looks.length - 1; m >= 0; m--) {
      if (chances[m] < LEARNED) relapses++;
      else if (relapses <= RELAPSES * (looks.length - m)) first = m;
    }
    return chances[looks.length - 1] < LEARNED ? looks.length : first;
  });
}

/** What changed since the moment before. If that is small, the greatest change of the film. "" if all are small.
 * @param {Curve} curve @param {Lane[]} lanes @param {number} moment
 * @param {{letter: string, head: (head: number) => string, at: (position: number) => string}} names
 * @returns {{moment: number, words: string}} */
export function greatestChange(curve, lanes, moment, names) {
  const sizes = curve.values.map((p, m) => Math.abs(p - curve.values[m - 1]) || 0); // NaN: not computed
  const largest = sizes[moment] >= LARGE ? moment : argmax(sizes);
  return { moment: largest, words: sizes[largest] >= LARGE ? change(curve, lanes, largest, names) : "" };
}

/** @param {Curve} curve @param {Lane[]} lanes @param {number} moment the later one
 * @param {Parameters<typeof greatestChange>[3]} names */
function change(curve, lanes, moment, names) {
  const [before, after] = curve.values.slice(moment - 1, moment + 1).map((p) => Math.round(100 * p));
  const grown = lanes
    .map((lane) => ({ lane, growth: lane.shares[moment] - lane.shares[moment - 1] }))
    .filter(({ growth }) => growth * Math.sign(after - before) >= FINDS)
    .sort((a, b) => Math.abs(b.growth) - Math.abs(a.growth))[0];
  const verb = after > before ? "finds" : "loses";
  const what = grown ? `head ${names.head(grown.lane.head)} ${verb} ${names.at(grown.lane.position)}: ` : "";
  return `${what}${names.letter} ${before}% → ${after}%`;
}
