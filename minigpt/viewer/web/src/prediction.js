/** What the panels say about the next letter: which ones to list, and what a head does to them. */

import { argmax, largest } from "./filters.js";

/** The ids of the most likely tokens, the likeliest first. Those in `needed` replace the last ones.
 * @param {ArrayLike<number>} probabilities (V) @param {number} count @param {number[]} [needed] */
export function likeliest(probabilities, count, needed = []) {
  const order = Array.from(probabilities, (_, id) => id).sort((a, b) => probabilities[b] - probabilities[a]);
  const shown = order.slice(0, count);
  const missing = [...new Set(needed)].filter((id) => !shown.includes(id));
  return [...shown.slice(0, count - missing.length), ...missing];
}

/**
 * What changes without a head.
 * @typedef {object} Effect
 * @property {number} expected the token that the model with all heads expects most
 * @property {number} before its probability now
 * @property {number} after its probability without the head
 * @property {number} winner the most likely token without the head
 * @property {number} share the probability of the winner
 * @property {boolean} breaks whether the winner is another token, which was not the most likely one before
 */

/** @param {import("./app.js").Look} look @param {Float32Array} logits without the head
 * @param {(logits: Float32Array) => Float64Array} softmax @returns {Effect} */
export function effectOf(look, logits, softmax) {
  const before = softmax(look.logits), after = softmax(logits);
  const expected = argmax(look.whole ?? look.logits);
  const winner = argmax(after);
  const breaks = winner !== expected && winner !== argmax(before);
  return { expected, before: before[expected], after: after[expected], winner, share: largest(after), breaks };
}
