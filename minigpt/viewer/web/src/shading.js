/** How dark each letter of the text is, and how panels name a letter and its line. */

import { glyph } from "./letters.js";

/** @typedef {import("./letters.js").Letter} Letter */
/** @typedef {import("./app.js").Look} Look */

/** Longer runs of letters, such as Chinese sentences, are not shown as words. */
const LONGEST_WORD = 14;

/** The attention weights of a head at the selected letter, (selected + 1).
 * @param {Look} look @param {number} head layer * n_head + head */
export function attentionRow(look, head) {
  const length = look.selected + 1;
  return look.attention.subarray(head * length, (head + 1) * length);
}

/** The index of the letter of a token. @param {Letter[]} letters @param {number} token */
export function letterOf(letters, token) {
  let low = 0, high = letters.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (letters[middle].last < token) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** A number for each letter in the window of a look, and 0 for the others: a text is much longer than a window.
 * @param {Letter[]} letters @param {Look | null | undefined} look @param {(letter: Letter) => number} value */
export function inWindow(letters, look, value) {
  const values = new Float64Array(letters.length);
  if (!look) return values;
  const first = letterOf(letters, look.from), last = letterOf(letters, look.from + look.ids.length - 1);
  for (let i = first; i <= last; i++) values[i] = value(letters[i]);
  return values;
}

/** The attention that a head gives to each letter: 0 for letters that it does not see.
 * @param {Letter[]} letters @param {Look} look @param {number} head layer * n_head + head */
export function attentionShares(letters, look, head) {
  const row = attentionRow(look, head);
  return inWindow(letters, look, ({ first, last }) => {
    const isSeen = first >= look.from && last <= look.from + look.selected;
    return isSeen ? row.subarray(first - look.from, last - look.from + 1).reduce((sum, share) => sum + share, 0) : 0;
  });
}

/** How little the model expected each letter, from 0 to 1.
 * @param {Letter[]} letters @param {Look} look */
export function surprises(letters, look) {
  return inWindow(letters, look, (letter) => {
    const nats = -Math.log(chance(look, letter));
    return nats > 0 ? Math.min(1, nats / 6) : 0; // NaN: the model did not see it
  });
}

/** The probability that a model gave to a letter, from the letters before it. NaN if it did not see them.
 * @param {Look} look @param {Letter} letter */
export function chance(look, { first, last }) {
  let product = 1;
  for (let t = first - look.from; t <= last - look.from; t++) product *= t > 0 ? (look.surprise[t] ?? NaN) : NaN;
  return product;
}

/** The word of a letter, or "" if it is in none. @param {Letter[]} letters @param {number} index */
export function wordOf(letters, index) {
  const isInWord = (/** @type {number} */ i) => /[\p{L}\p{M}\p{N}]/u.test(letters[i]?.text ?? "");
  let from = index, to = index;
  while (isInWord(from) && isInWord(from - 1)) from--;
  while (isInWord(to) && isInWord(to + 1)) to++;
  const isWord = from < to && to - from < LONGEST_WORD;
  return isWord ? letters.slice(from, to + 1).map(({ text }) => text).join("") : "";
}

/** Name a letter with its word, such as `“A” of Anna`. @param {Letter[]} letters @param {number} index */
export function quoted(letters, index) {
  const word = wordOf(letters, index);
  return `“${glyph(letters[index].text)}”${word && ` of ${word}`}`;
}

/** The line of a letter, cut to `width` letters around it, as a range [from, to).
 * @param {Letter[]} letters @param {number} index @param {number} width */
export function lineAround(letters, index, width) {
  let from = index, to = index + 1;
  while (from > 0 && letters[from - 1].text !== "\n") from--;
  while (to < letters.length && letters[to - 1].text !== "\n") to++;
  from = Math.max(from, Math.min(index - Math.floor(width / 2), to - width));
  return [from, Math.min(to, from + width)];
}
