/** What the film of a run shows, from what the model of each moment computed for the text. Without a DOM. */

import { argmax, softmax } from "./filters.js";
import { glyph } from "./letters.js";
import { attentionRow, chance, effectOf, FINDS, inWindow, letterOf, LONGEST_WORD, quoted, wordOf } from "./views.js";
import type { Look } from "./answers.js";
import type { App } from "./app.js";
import type { Letter } from "./letters.js";

export type Lane = {
  head: number; // layer * n_head + head
  position: number; // of the token that it attends to at the end
  shares: number[]; // its attention to this token at each moment, NaN if not computed
};
/** The probability of a token at each moment, NaN if not computed. */
export type Curve = { values: number[], token: number };
export type Story = {
  isComplete: boolean; // whether all was known
  isOld: boolean; // whether it is about a letter that was selected before
  curve: Curve;
  letter: string; // the letter that the curve is about, in quotes
  /** name: such as `2·3 → “A” of Anna`; short: without the word */
  lanes: (Lane & { name: string, short: string })[];
  event: number; // the moment of the greatest change, or -1, and what happens there
  sentence: string;
};

/** A letter is learned at a probability of one half, if later moments fall below it at most this often. */
const LEARNED = 0.5, RELAPSES = 0.2;
/** A change of the prediction that is worth a sentence. */
const LARGE = 0.25;
/** A head has a lane if the prediction falls by this much without it. */
const MATTERS = 0.05;
export const LANES = 3;

/** The learning curve of the letter that came, or of the token that is the likeliest at the end. */
export function curveOf(app: App): Curve {
  const { letters, ids, selected } = app.state, next: Letter | undefined = letters[selected + 1];
  const looks = app.film.map((index) => app.fresh(index)), end = app.answers.look(app.end);
  const came = next && next.first === next.last ? ids[next.first] : -1; // several bytes have no common token
  const token = next ? came : end ? argmax(end.logits) : -1;
  const value = (look: Look) =>
    next && token < 0 ? chance(look, next) : (app.probabilities(look.logits)[token] ?? NaN);
  return { values: looks.map((look) => (look ? value(look) : NaN)), token };
}

/** The moment before which a curve changes most, or -1 if it changes little. */
export function eventOf({ values }: Curve) {
  const sizes = values.map((p, moment) => Math.abs(p - values[moment - 1]) || 0); // NaN: not computed
  return Math.max(...sizes) >= LARGE ? argmax(sizes) : -1;
}

/** The heads without which the prediction falls most at the end, and when each of them came to attend to its letter.
 * @param looks of each moment
 * @param end the last one with all heads on, and with the effects of all */
export function lanes(looks: (Look | null)[], end: Look | null): Lane[] {
  if (!end) return [];
  const drops = [...end.effects].map(([head, { logits }]) => {
    const { before, after } = effectOf(end, logits, softmax);
    return { head, drop: before - after };
  });
  const large = drops.filter(({ drop }) => drop >= MATTERS).sort((a, b) => b.drop - a.drop);
  return large.slice(0, LANES).map(({ head }) => {
    const position = argmax(attentionRow(end, head));
    return { head, position, shares: looks.map((look) => (look ? attentionRow(look, head)[position] : NaN)) };
  });
}

/** How late each letter was learned: from 1/n at the first of n moments to 1; 0 if never, or if that is unknown. */
export function learned(looks: (Look | null)[], letters: Letter[]) {
  const end = looks.at(-1), { length } = looks;
  return inWindow(letters, end, (letter) => {
    const chances = looks.map((look) => (look ? chance(look, letter) : NaN));
    if (chances.some(Number.isNaN) || chances[length - 1] < LEARNED) return 0;
    let first = length, relapses = 0;
    for (let m = length - 1; m >= 0; m--) {
      if (chances[m] < LEARNED) relapses++;
      else if (relapses <= RELAPSES * (length - m)) first = m;
    }
    return (first + 1) / length;
  });
}

/** What the strip shows, once everything is known. Until then, what it last showed, if that was complete. */
export function storyOf(app: App, before?: Story): Story {
  const { isFilmComplete: isComplete } = app, { letters, selected } = app.state, next = letters[selected + 1];
  if (!isComplete && before?.isComplete) return { ...before, isOld: true };
  const looks = app.film.map((index) => app.fresh(index)), end = app.answers.look(app.end);
  const curve = curveOf(app), event = isComplete ? eventOf(curve) : -1;
  const letter = `“${next ? glyph(next.text) : curve.token < 0 ? "" : app.vocabulary.show(curve.token)}”`;
  const rows = lanes(looks, isComplete ? end : null).map((lane) => {
    const at = letterOf(letters, lane.position + (end?.from ?? 0)), name = app.nameOf(lane.head);
    return { ...lane, name: `${name} → ${quoted(letters, at)}`, short: `${name} → ${glyph(letters[at].text)}`, at };
  });
  const story = { isComplete, isOld: false, curve, letter, lanes: rows, event, sentence: "" };
  if (event < 0) return story;
  const [was, is] = curve.values.slice(event - 1, event + 1).map((p) => Math.round(100 * p));
  const growth = ({ shares }: Lane) => (shares[event] - shares[event - 1]) * Math.sign(is - was);
  const [lane] = rows.filter((row) => growth(row) >= FINDS).sort((a, b) => growth(b) - growth(a));
  const verb = is > was ? "finds" : "loses";
  const finds = lane ? `head ${app.nameOf(lane.head)} ${verb} ${quoted(letters, lane.at)}. ` : "";
  const [said, says] = [looks[event - 1], looks[event]].map((look) => firstWord(app, look?.written));
  const isOther = said && says && said !== says;
  const words = isOther ? `Before: “${said}”, now: “${says}”` : `${letter} ${was}% → ${is}%`;
  const off = looks[event]?.muted.length ? "with heads off, " : "";
  return { ...story, sentence: `${off}${finds}${words}.` };
}

/** The word that a model would write from the selected letter on, with the letters of it that are there. */
function firstWord(app: App, written: number[] | undefined) {
  if (!written) return "";
  const { letters, selected } = app.state, isInside = /[\p{L}\p{M}\p{N}]/u.test(letters[selected].text);
  const word = isInside ? wordOf(letters.slice(0, selected + 1), selected) || letters[selected].text : "";
  return (word + app.vocabulary.decode(written)).match(/[\p{L}\p{M}\p{N}]+/u)?.[0].slice(0, LONGEST_WORD) ?? "";
}
