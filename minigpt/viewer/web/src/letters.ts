/** Letters of a text and the tokens of the model. A letter is one character; it has one token, or several bytes. */

/** `start` and `end` are offsets in the string, `first` and `last` the indices of its tokens. */
export type Letter = { text: string, start: number, end: number, first: number, last: number };
export type Encoded = { letters: Letter[], ids: number[] };

const GLYPHS: Record<string, string> = {
  " ": "␣", "\n": "↵", "\t": "⇥", "\r": "␍", "\u007f": "␡", "\u00a0": "⍽",
};

export class Vocabulary {
  readonly isByte: boolean;
  readonly ids: Map<string, number>;

  /** @param tokenizer "char" or "byte" @param tokens the characters of a "char" tokenizer */
  constructor(tokenizer: string, readonly tokens: string[] = []) {
    this.isByte = tokenizer === "byte";
    this.ids = new Map(tokens.map((token, id) => [token, id]));
  }

  /** The distinct letters of a text that the model does not know. */
  unknown(text: string) {
    return this.isByte ? [] : [...new Set(text)].filter((letter) => !this.ids.has(letter));
  }

  /** @param text a text without unknown letters */
  encode(text: string): Encoded {
    const letters: Letter[] = [];
    const ids: number[] = [];
    const bytes = new TextEncoder();
    let start = 0;
    for (const letter of text) {
      const first = ids.length;
      if (this.isByte) ids.push(...bytes.encode(letter));
      else ids.push(this.ids.get(letter) as number);
      letters.push({ text: letter, start, end: start + letter.length, first, last: ids.length - 1 });
      start += letter.length;
    }
    return { letters, ids };
  }

  /** The text of tokens. Bytes that are not UTF-8 become U+FFFD. */
  decode(ids: number[]) {
    if (!this.isByte) return ids.map((id) => this.tokens[id]).join("");
    return new TextDecoder("utf-8", { ignoreBOM: true }).decode(new Uint8Array(ids)); // true: keep a byte order mark
  }

  /** A token in visible form. */
  show(id: number) {
    if (!this.isByte) return glyph(this.tokens[id]);
    return id < 128 ? glyph(String.fromCharCode(id)) : `\\x${id.toString(16).toUpperCase()}`;
  }
}

/** Whether these bytes end with an unfinished UTF-8 character. */
export function isUnfinished(bytes: number[]) {
  let missing = 0;
  for (const byte of bytes) {
    if (missing > 0 && byte >> 6 === 2) missing--;
    else
      missing = byte >= 0xf0 && byte < 0xf8 ? 3 : byte >= 0xe0 && byte < 0xf0 ? 2 : byte >= 0xc2 && byte < 0xe0 ? 1 : 0;
  }
  return missing > 0;
}

/** A character in visible form. */
export function glyph(letter: string) {
  if (letter in GLYPHS) return GLYPHS[letter];
  const code = letter.codePointAt(0) as number;
  if (code < 32) return String.fromCharCode(0x2400 + code);
  if (/^\p{M}/u.test(letter)) return `◌${letter}`;
  return /^[\p{C}\p{Z}\u115f\u1160\u2800\u3164\uffa0]/u.test(letter)
    ? `U+${code.toString(16).toUpperCase().padStart(4, "0")}`
    : letter;
}

/** A text as a text field holds it: the field would turn carriage returns into newlines. */
export function toField(text: string) {
  return text.replaceAll("\r", GLYPHS["\r"]);
}

/** The text after an edit: carriage returns outside the edited part stay.
 * @param value of the field
 * @param before the text before the edit */
export function fromField(value: string, before: string) {
  const old = toField(before), most = Math.min(value.length, old.length);
  let start = 0, end = 0;
  while (start < most && value[start] === old[start]) start++;
  while (end < most - start && value.at(-1 - end) === old.at(-1 - end)) end++;
  return before.slice(0, start) + value.slice(start, value.length - end) + before.slice(before.length - end);
}

/** The index of the first token that the model sees, when it predicts what follows `length` tokens. As in `minigpt
 * sample`, a full window drops its oldest half. */
export function windowStart(length: number, context: number) {
  const stride = Math.max(1, Math.floor(context / 2));
  return Math.ceil(Math.max(0, length - context) / stride) * stride || 0;
}
