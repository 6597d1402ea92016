/** What the panels say about the next letter: which ones to list, and what a head does to them. */

import { argmax, descending, largest } from "./filters.js";
import type { Look } from "./answers.js";

/** The ids of the most likely tokens, the likeliest first. Those in `needed` replace the last ones.
 * @param probabilities (V) */
export function likeliest(probabilities: ArrayLike<number>, count: number, needed: number[] = []) {
  const shown = descending(probabilities).slice(0, count);
  const missing = [...new Set(needed)].filter((id) => !shown.includes(id));
  return [...shown.slice(0, count - missing.length), ...missing];
}

/** What changes without a head: the token that the model with all heads expects most, its probability now and without
 * the head, the winner without it and its probability, and whether this is another token that did not win before.
 * @param logits without the head */
export function effectOf(look: Look, logits: Float32Array, softmax: (logits: Float32Array) => Float64Array) {
  const before = softmax(look.logits), after = softmax(logits);
  const expected = argmax(look.whole ?? look.logits);
  const winner = argmax(after);
  const breaks = winner !== expected && winner !== argmax(before);
  return { expected, before: before[expected], after: after[expected], winner, share: largest(after), breaks };
}
