/** How dark each letter of the text is, and how panels name a letter and its line. */

import { glyph } from "./letters.js";
import type { Letter } from "./letters.js";
import type { Look } from "./answers.js";

/** Longer runs of letters, such as Chinese sentences, are not shown as words. */
const LONGEST_WORD = 14;

/** The attention weights of a head at the selected letter, (selected + 1). @param head layer * n_head + head */
export function attentionRow(look: Look, head: number) {
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

/** The line of a letter, cut to `width` letters around it, as a range [from, to). */
export function lineAround(letters: Letter[], index: number, width: number) {
  let from = index, to = index + 1;
  while (from > 0 && letters[from - 1].text !== "\n") from--;
  while (to < letters.length && letters[to - 1].text !== "\n") to++;
  from = Math.max(from, Math.min(index - Math.floor(width / 2), to - width));
  return [from, Math.min(to, from + width)];
}
