/** Letters of a text and the tokens of the model. A letter is one character; it has one token, or several bytes. */

/** @typedef {{text: string, start: number, end: number, first: number, last: number}} Letter
 * `start` and `end` are offsets in the string, `first` and `last` the indices of its tokens. */
/** @typedef {{letters: Letter[], ids: number[]}} Encoded */

const GLYPHS = /** @type {Record<string, string>} */ ({
  " ": "␣", "\n": "↵", "\t": "⇥", "\r": "␍", "\u007f": "␡", "\u00a0": "⍽",
});

export class Vocabulary {
  /** @param {string} tokenizer "char" or "byte" @param {string[]} [tokens] the characters of a "char" tokenizer */
  constructor(tokenizer, tokens = []) {
    this.isByte = tokenizer === "byte";
    this.tokens = tokens;
    /** @type {Map<string, number>} */
    this.ids = new Map(tokens.map((token, id) => [token, id]));
  }

  /** The distinct letters of a text that the model does not know. @param {string} text */
  unknown(text) {
    return this.isByte ? [] : [...new Set(text)].filter((letter) => !this.ids.has(letter));
  }

  /** @param {string} text a text without unknown letters @returns {Encoded} */
  encode(text) {
    /** @type {Letter[]} */
    const letters = [];
    /** @type {number[]} */
    const ids = [];
    const bytes = new TextEncoder();
    let start = 0;
    for (const letter of text) {
      const first = ids.length;
      if (this.isByte) ids.push(...bytes.encode(letter));
      else ids.push(/** @type {number} */ (this.ids.get(letter)));
      letters.push({ text: letter, start, end: start + letter.length, first, last: ids.length - 1 });
      start += letter.length;
    }
    return { letters, ids };
  }

  /** The text of tokens. Bytes that are not UTF-8 become U+FFFD. @param {number[]} ids */
  decode(ids) {
    if (!this.isByte) return ids.map((id) => this.tokens[id]).join("");
    return new TextDecoder("utf-8", { ignoreBOM: true }).decode(new Uint8Array(ids)); // true: keep a byte order mark
  }

  /** A token in visible form. @param {number} id */
  show(id) {
    if (!this.isByte) return glyph(this.tokens[id]);
    return id < 128 ? glyph(String.fromCharCode(id)) : `\\x${id.toString(16).toUpperCase()}`;
  }
}

/** Whether these bytes end with an unfinished UTF-8 character. @param {number[]} bytes */
export function isUnfinished(bytes) {
  let missing = 0;
  for (const byte of bytes) {
    if (missing > 0 && byte >> 6 === 2) missing--;
    else
      missing = byte >= 0xf0 && byte < 0xf8 ? 3 : byte >= 0xe0 && byte < 0xf0 ? 2 : byte >= 0xc2 && byte < 0xe0 ? 1 : 0;
  }
  return missing > 0;
}

/** A character in visible form. @param {string} letter */
export function glyph(letter) {
  if (letter in GLYPHS) return GLYPHS[letter];
  const code = /** @type {number} */ (letter.codePointAt(0));
  if (code < 32) return String.fromCharCode(0x2400 + code);
  if (/^\p{M}/u.test(letter)) return `◌${letter}`;
  return /^[\p{C}\p{Z}\u115f\u1160\u2800\u3164\uffa0]/u.test(letter)
    ? `U+${code.toString(16).toUpperCase().padStart(4, "0")}`
    : letter;
}

/** A text as a text field holds it: the field would turn carriage returns into newlines. @param {string} text */
export function toField(text) {
  return text.replaceAll("\r", GLYPHS["\r"]);
}

/** The text after an edit: carriage returns outside the edited part stay.
 * @param {string} value of the field @param {string} before the text before the edit */
export function fromField(value, before) {
  const old = toField(before), most = Math.min(value.length, old.length);
  let start = 0, end = 0;
  while (start < most && value[start] === old[start]) start++;
  while (end < most - start && value.at(-1 - end) === old.at(-1 - end)) end++;
  return before.slice(0, start) + value.slice(start, value.length - end) + before.slice(before.length - end);
}

/** The index of the first token that the model sees, when it predicts what follows `length` tokens.
 * As in `minigpt sample`, a full window drops its oldest half.
 * @param {number} length @param {number} context */
export function windowStart(length, context) {
  const stride = Math.max(1, Math.floor(context / 2));
  return Math.ceil(Math.max(0, length - context) / stride) * stride || 0;
}
