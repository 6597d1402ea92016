/** What panels show of a look: where heads attend, what changes without one, and names of letters. Without a DOM. */

import { argmax, descending, largest } from "./filters.js";
import { glyph } from "./letters.js";
import type { Letter } from "./letters.js";
import type { Look } from "./answers.js";

/** A change of attention that is worth a sentence. */
export const FINDS = 0.3;
/** Longer runs of letters, such as Chinese sentences, are not shown as words. */
export const LONGEST_WORD = 14;

/** The attention weights of a head at the selected letter, (selected + 1). @param head layer * n_head + head */
export function attentionRow(look: Pick<Look, "attention" | "selected">, head: number) {
  const length = look.selected + 1;
  return look.attention.subarray(head * length, (head + 1) * length);
}

/** The index of the letter of a token. */
export function letterOf(letters: Letter[], token: number) {
  let low = 0, high = letters.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (letters[middle].last < token) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** A number for each letter in the window of a look, and 0 for the others: a text is much longer than a window. */
export function inWindow(letters: Letter[], look: Look | null | undefined, value: (letter: Letter) => number) {
  const values = new Float64Array(letters.length);
  if (!look) return values;
  const first = letterOf(letters, look.from), last = letterOf(letters, look.from + look.ids.length - 1);
  for (let i = first; i <= last; i++) values[i] = value(letters[i]);
  return values;
}

/** The attention that a head gives to each letter: 0 for letters that it does not see.
 * @param head layer * n_head + head */
export function attentionShares(letters: Letter[], look: Look, head: number) {
  const row = attentionRow(look, head);
  return inWindow(letters, look, ({ first, last }) => {
    const isSeen = first >= look.from && last <= look.from + look.selected;
    return isSeen ? row.subarray(first - look.from, last - look.from + 1).reduce((sum, share) => sum + share, 0) : 0;
  });
}

/** How little the model expected each letter, from 0 to 1. */
export function surprises(letters: Letter[], look: Look) {
  return inWindow(letters, look, (letter) => {
    const nats = -Math.log(chance(look, letter));
    return nats > 0 ? Math.min(1, nats / 6) : 0; // NaN: the model did not see it
  });
}

/** The probability that a model gave to a letter, from the letters before it. NaN if it did not see them. */
export function chance(look: Look, { first, last }: Letter) {
  let product = 1;
  for (let t = first - look.from; t <= last - look.from; t++) product *= t > 0 ? (look.surprise[t] ?? NaN) : NaN;
  return product;
}

/** The word of a letter, or "" if it is in none. */
export function wordOf(letters: Letter[], index: number) {
  const isInWord = (i: number) => /[\p{L}\p{M}\p{N}]/u.test(letters[i]?.text ?? "");
  let from = index, to = index;
  while (isInWord(from) && isInWord(from - 1)) from--;
  while (isInWord(to) && isInWord(to + 1)) to++;
  const isWord = from < to && to - from < LONGEST_WORD;
  return isWord ? letters.slice(from, to + 1).map(({ text }) => text).join("") : "";
}

/** Name a letter with its word, such as `“A” of Anna`. */
export function quoted(letters: Letter[], index: number) {
  const word = wordOf(letters, index);
  return `“${glyph(letters[index].text)}”${word && ` of ${word}`}`;
}

/** The ids of the most likely tokens, the likeliest first. Those in `needed` replace the last ones.
 * @param probabilities (V) */
export function likeliest(probabilities: ArrayLike<number>, count: number, needed: number[] = []) {
  const shown = descending(probabilities).slice(0, count);
  const missing = [...new Set(needed)].filter((id) => !shown.includes(id));
  return [...shown.slice(0, count - missing.length), ...missing];
}

/** What changes without a head: the token that the model with all heads expects most, its probability now and without
 * the head, the winner without it and its probability, and whether this is another token that did not win before. */
export function effectOf(look: Look, logits: Float32Array, softmax: (logits: Float32Array) => Float64Array) {
  const before = softmax(look.logits), after = softmax(logits);
  const expected = argmax(look.whole ?? look.logits), winner = argmax(after);
  const breaks = winner !== expected && winner !== argmax(before);
  return { expected, before: before[expected], after: after[expected], winner, share: largest(after), breaks };
}

export type Turn = {
  off: number, head: number; // layer * n_head + head of the one that is off, and of the one that looks elsewhere then
  /** the position that gets most attention with and without `off`, and its share */
  from: number, before: number, to: number, after: number;
  lost: number; // what `from` gets less
};

/** The heads that attend to another token when an earlier one is off, the greatest loss first. */
export function turns(look: Look): Turn[] {
  const found: Turn[] = [], count = look.attention.length / (look.selected + 1);
  for (const [off, effect] of look.effects) {
    for (let head = off + 1; head < count; head++) {
      const row = attentionRow(look, head), other = attentionRow({ ...look, attention: effect.attention }, head);
      const from = argmax(row), to = argmax(other), lost = row[from] - other[from];
      if (from !== to && lost >= FINDS) found.push({ off, head, from, before: row[from], to, after: other[to], lost });
    }
  }
  return found.sort((a, b) => b.lost - a.lost);
}
