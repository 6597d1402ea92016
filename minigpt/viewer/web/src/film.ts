/** What the film of a run shows, from what the model of each moment computed for the text. Without a DOM. */

import { argmax, softmax } from "./filters.js";
import { glyph } from "./letters.js";
import { effectOf } from "./prediction.js";
import { attentionRow, chance, inWindow, letterOf, quoted } from "./shading.js";
import type { Look } from "./answers.js";
import type { App } from "./app.js";
import type { Letter } from "./letters.js";

export type Lane = {
  /** layer * n_head + head */
  head: number;
  /** of the token that it attends to at the end */
  position: number;
  /** its attention to this token at each moment, NaN if not computed */
  shares: number[];
};
/** The probability of a token at each moment, NaN if not computed. */
export type Curve = { values: number[], token: number };
export type Names = { letter: string, head: (head: number) => string, at: (position: number) => string };
export type Story = {
  /** whether all was known */
  isComplete: boolean;
  /** whether it is about a letter that was selected before */
  isOld: boolean;
  curve: Curve;
  lanes: (Lane & { name: string })[];
  names: Names;
};

/** A letter is learned at a probability of one half, if later moments fall below it at most this often. */
const LEARNED = 0.5, RELAPSES = 0.2;
/** A change of the prediction, and of a head's attention, that is worth a sentence. */
const LARGE = 0.25, FINDS = 0.3;
/** A head has a lane if the prediction falls by so much without it. */
const MATTERS = 0.05;
export const LANES = 3;

/** The learning curve of the letter that came, or of the token that is the likeliest at the end.
 * @param looks of each moment
 * @param end the last one with all heads on
 * @param next the letter after the selected one
 * @param token the token of this letter, or -1 if it has several or did not come
 * @param probabilities at the chosen temperature */
export function learningCurve(
  looks: (Look | null)[], end: Look | null, next: Letter | undefined, token: number,
  probabilities: (logits: Float32Array) => Float64Array,
): Curve {
  if (!next) token = end ? argmax(end.logits) : -1;
  const value = (look: Look) =>
    next && token < 0 ? chance(look, next) : (probabilities(look.logits)[token] ?? NaN);
  return { values: looks.map((look) => (look ? value(look) : NaN)), token };
}

/** The heads without which the prediction falls most at the end, and when each of them came to attend to its letter.
 * @param looks of each moment
 * @param end the last one with all heads on, and with the effects of all */
export function lanes(looks: (Look | null)[], end: Look | null): Lane[] {
  if (!end) return [];
  const drops = [...end.effects].map(([head, logits]) => {
    const { before, after } = effectOf(end, logits, softmax);
    return { head, drop: before - after };
  });
  const large = drops.filter(({ drop }) => drop >= MATTERS).sort((a, b) => b.drop - a.drop);
  return large.slice(0, LANES).map(({ head }) => {
    const position = argmax(attentionRow(end, head));
    return { head, position, shares: looks.map((look) => (look ? attentionRow(look, head)[position] : NaN)) };
  });
}

/** How late each letter was learned: from 1/n at the first of n moments to 1; 0 if never, or if that cannot be known. */
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

/** What the strip shows, once everything is known. Until then, it is what the strip showed before, if that was whole. */
export function storyOf(app: App, before?: Story): Story {
  const { isFilmComplete } = app, { letters, ids, selected } = app.state;
  if (!isFilmComplete && before?.isComplete) return { ...before, isOld: true };
  const looks = app.film.map((index) => app.fresh(index)), next = letters[selected + 1];
  const token = next?.first === next?.last ? (ids[next?.first] ?? -1) : -1;
  const end = app.answers.look(app.end);
  const curve = learningCurve(looks, end, next, token, (logits) => app.probabilities(logits));
  const letter = `“${next ? glyph(next.text) : curve.token < 0 ? "" : app.vocabulary.show(curve.token)}”`;
  const { n_head } = app.payload.models[app.film[0]].config;
  const at = (position: number) => letterOf(letters, position + (end?.from ?? 0));
  const names = {
    letter,
    head: (head: number) => `${Math.floor(head / n_head)}·${head % n_head}`,
    at: (position: number) => quoted(letters, at(position)),
  };
  const rows = lanes(looks, isFilmComplete ? end : null).map((lane) => ({
    ...lane, name: `${names.head(lane.head)} on “${glyph(letters[at(lane.position)].text)}”`,
  }));
  return { isComplete: isFilmComplete, isOld: false, curve, lanes: rows, names };
}

/** What changed since the moment before. If that is small, the greatest change of the film. "" if all are small. */
export function greatestChange(curve: Curve, lanes: Lane[], moment: number, names: Names) {
  const sizes = curve.values.map((p, m) => Math.abs(p - curve.values[m - 1]) || 0); // NaN: not computed
  const largest = sizes[moment] >= LARGE ? moment : argmax(sizes);
  return { moment: largest, words: sizes[largest] >= LARGE ? change(curve, lanes, largest, names) : "" };
}

/** @param moment the later one */
function change(curve: Curve, lanes: Lane[], moment: number, names: Names) {
  const [before, after] = curve.values.slice(moment - 1, moment + 1).map((p) => Math.round(100 * p));
  const grown = lanes
    .map((lane) => ({ lane, growth: lane.shares[moment] - lane.shares[moment - 1] }))
    .filter(({ growth }) => growth * Math.sign(after - before) >= FINDS)
    .sort((a, b) => Math.abs(b.growth) - Math.abs(a.growth))[0];
  const verb = after > before ? "finds" : "loses";
  const what = grown ? `head ${names.head(grown.lane.head)} ${verb} ${names.at(grown.lane.position)}: ` : "";
  return `${what}${names.letter} ${before}% → ${after}%`;
}
