/** What the film of a run shows, from what the model of each moment computed for the text. Without a DOM. */

import { argmax, softmax } from "./filters.js";

/**
 * @typedef {import("./app.js").Look} Look
 * @typedef {import("./letters.js").Letter} Letter
 * @typedef {{head: number, position: number, shares: number[]}} Lane   head: layer * n_head + head; position: of the
 *   token that it attends to at the end; shares: its attention to this token at each moment, NaN if not computed
 * @typedef {{values: number[], token: number, came: boolean}} Curve   the probability at each moment, NaN if not
 *   computed, of the letter that came after the selected one, or else of the token that is the likeliest at the end
 */

/** A letter is learned at a probability of one half, if later moments fall below it at most this often. */
const LEARNED = 0.5, RELAPSES = 0.2;
/** A change of the prediction, and of a head's attention, that is worth a sentence. */
const LARGE = 0.25, FINDS = 0.3;
/** A head has a lane if the prediction falls by so much without it. */
const MATTERS = 0.05, LANES = 3;

/** The probability that a model gave to a letter, from the letters before it. NaN if it did not see them.
 * @param {Look} look @param {Letter} letter */
export function chance(look, { first, last }) {
  let product = 1;
  for (let t = first - look.from; t <= last - look.from; t++) product *= t > 0 ? (look.surprise[t] ?? NaN) : NaN;
  return product;
}

/** The learning curve of one letter.
 * @param {(Look | null)[]} looks of each moment @param {Letter | undefined} next the letter after the selected one
 * @returns {Curve} */
export function learningCurve(looks, next) {
  const last = [...looks].reverse().find(Boolean), token = last ? argmax(last.logits) : -1;
  const values = looks.map((look) => (look ? (next ? chance(look, next) : softmax(look.logits)[token]) : NaN));
  return { values, token, came: next !== undefined };
}

/** The heads that matter most at the end, and when each of them came to attend to what it attends to there.
 * @param {(Look | null)[]} looks of each moment, with effects of the last @returns {Lane[]} */
export function lanes(looks) {
  const end = looks.at(-1);
  if (!end) return [];
  const expected = argmax(end.logits), before = softmax(end.logits)[expected], length = end.at + 1;
  const drops = [...end.effects].map(([head, logits]) => ({ head, drop: before - softmax(logits)[expected] }));
  return drops.filter(({ drop }) => drop >= MATTERS).sort((a, b) => b.drop - a.drop).slice(0, LANES).map(({ head }) => {
    const row = (/** @type {Look} */ look) => look.attention.subarray(head * length, (head + 1) * length);
    const position = argmax(row(end));
    return { head, position, shares: looks.map((look) => (look?.at === end.at ? row(look)[position] : NaN)) };
  });
}

/** The index of the moment at which each letter was learned, looks.length if never, NaN if it cannot be known.
 * @param {(Look | null)[]} looks @param {Letter[]} letters */
export function learned(looks, letters) {
  return letters.map((letter) => {
    const chances = looks.map((look) => (look ? chance(look, letter) : NaN));
    if (chances.some(Number.isNaN)) return NaN;
    let first = looks.length, relapses = 0;
    for (let m = looks.length - 1; m >= 0; m--) {
      if (chances[m] < LEARNED) relapses++;
      else if (relapses <= RELAPSES * (looks.length - m)) first = m;
    }
    return chances[looks.length - 1] < LEARNED ? looks.length : first;
  });
}

/** What changed between two moments in a row, in a few words. "" if it is little, or not computed.
 * @param {Curve} curve @param {Lane[]} lanes @param {number} moment the later one
 * @param {{letter: string, head: (head: number) => string, at: (position: number) => string}} names */
export function change(curve, lanes, moment, names) {
  const [before, after] = curve.values.slice(moment - 1, moment + 1).map((p) => Math.round(100 * p));
  if (!(Math.abs(after - before) >= 100 * LARGE)) return "";
  const grown = lanes
    .map((lane) => ({ lane, growth: lane.shares[moment] - lane.shares[moment - 1] }))
    .filter(({ growth }) => growth * Math.sign(after - before) >= FINDS)
    .sort((a, b) => Math.abs(b.growth) - Math.abs(a.growth))[0];
  const verb = after > before ? "finds" : "loses";
  const what = grown ? `head ${names.head(grown.lane.head)} ${verb} ${names.at(grown.lane.position)}: ` : "";
  return `${what}${names.letter} ${before}% → ${after}%`;
}
