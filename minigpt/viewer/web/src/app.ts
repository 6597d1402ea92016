/** What the page shows, and what its visitor can do. Panels draw from the state; only this file changes it. */

import { Answers } from "./answers.js";
import { choose, softmax, weigh } from "./filters.js";
import { curveOf, eventOf } from "./film.js";
import { History } from "./history.js";
import { windowStart } from "./letters.js";
import { isRecurrent } from "./weights.js";
import { Writer } from "./writer.js";
import type { Look, Position, Question } from "./answers.js";
import type { Filters } from "./filters.js";
import type { Letter, Vocabulary } from "./letters.js";
import type { Reply, Request } from "./session.js";
import type { Payload } from "./types.js";

export type Head = { layer: number, head: number };
export type Shade = "head" | "surprise" | "learned" | "nothing";
export type State = {
  text: string;
  letters: Letter[];
  ids: number[]; // all tokens of the text
  selected: number; // the index of a letter
  model: number;
  pinned: number | null; // a model to compare `model` with
  head: Head | null; // the chosen one
  preview: Head | null; // the one under the mouse
  shade: Shade;
  muted: Set<number>[]; // heads that are switched off, by model
  sampling: Filters;
  message: string; // what the visitor should know
};

export const MAX_LETTERS = 4000;
/** Milliseconds between two letters, so that eyes can follow. */
const PAUSE = 30;
/** Milliseconds that a message stays. */
const NOTICE = 6000;
/** Milliseconds in which answers about heads and moments share a frame. */
const TOGETHER = 200;

export class App {
  panels: ((state: State) => void)[] = [];
  history = new History();
  writer: Writer;
  answers: Answers;
  unknown: string[] = []; // letters that the message names
  notice: ReturnType<typeof setTimeout> | undefined;
  shared: ReturnType<typeof setTimeout> | undefined;
  isScheduled = false;
  positions: Position[] = []; // where each model is asked about the selected letter
  before: (Look | null)[]; // the last look of each model before, to show until the new one comes
  once: Question[] = []; // what is asked once: the newest request for details, and checks of the arithmetic
  sheets = 0;
  film: number[]; // the moments of the run that the page is about, as models, by their steps; empty if only one
  head: Head | null = null; // the chosen head, which a model may not have
  state: State;

  /** @param send sends a request to the engine */
  constructor(readonly payload: Payload, readonly vocabulary: Vocabulary, send: (request: Request) => void) {
    this.writer = new Writer(vocabulary);
    this.answers = new Answers(send, (question, reply) => this.learn(question, reply));
    this.before = payload.models.map(() => null);
    this.film = payload.film;
    this.state = this.beginning();
  }

  /** The state that the page starts with. */
  beginning(): State {
    const { text, selected: token, head, models, sample } = this.payload;
    const { letters, ids } = this.vocabulary.encode(text);
    this.head = head && { layer: head[0], head: head[1] };
    const isShown = this.has(0, this.head);
    return {
      text, letters, ids, selected: Math.max(0, letters.findIndex(({ last }) => last >= token)),
      model: 0, pinned: null, muted: models.map(() => new Set<number>()), head: isShown ? this.head : null,
      preview: null, shade: isShown ? "head" : "surprise", sampling: { ...sample }, message: "",
    };
  }

  /** The model that the text and the heads show. */
  get model() {
    return this.payload.models[this.state.model];
  }

  /** What the shown model computed: about the selected letter, or about the last one until the answer comes. */
  get look(): Look | null {
    return this.isCurrent() ? this.fresh() : this.before[this.state.model];
  }

  /** The index in the film of the model that the page shows, or -1. */
  get moment() {
    return this.film.indexOf(this.state.model);
  }

  /** Whether a model has answered about the selected letter. */
  isCurrent(model = this.state.model) {
    return this.answers.has(this.positions[model]);
  }

  /** What a model computed, if it is about the selected letter. */
  fresh(model: number | null = this.state.model) {
    return model === null ? null : this.answers.look(this.positions[model]);
  }

  /** The heads that are switched off, as layer * n_head + head. */
  get muted() {
    return this.state.muted[this.state.model];
  }

  /** The head that shades the text. */
  get shadingHead(): Head | null {
    const { head, preview, shade } = this.state;
    return preview ?? (shade === "head" ? head : null);
  }

  /** The color of the shades, for a style. */
  get hue() {
    if (this.shadingHead) return `var(--head-${this.shadingHead.head % 8})`;
    return this.state.shade === "learned" ? "var(--head-1)" : "var(--red)";
  }

  /** @returns layer * n_head + head */
  index({ layer, head }: Head, model = this.state.model): number {
    return layer * this.payload.models[model].config.n_head + head;
  }

  /** The name of a head, by layer * n_head + head. */
  nameOf(index: number) {
    const { n_head } = this.model.config;
    return `${Math.floor(index / n_head)}·${index % n_head}`;
  }

  /** Whether a model has a head. */
  has(model: number, head: Head | null) {
    return Boolean(head && this.payload.models[model].heads[head.layer]?.[head.head]);
  }

  /** Change the state, and draw it in the next frame. */
  set(changes: Partial<State>) {
    Object.assign(this.state, changes);
    if (this.isScheduled) return;
    this.isScheduled = true;
    requestAnimationFrame(() => {
      this.isScheduled = false;
      for (const draw of this.panels) draw(this.state);
    });
  }

  /** Tell the visitor something for some seconds, whatever happens meanwhile. */
  say(message: string) {
    this.unknown = [];
    clearTimeout(this.notice);
    this.notice = setTimeout(() => this.set({ message: "" }), NOTICE);
    this.set({ message });
  }

  // --- the text ---

  /** Change the text. Unknown letters are left out and named.
   * @param caret the offset after the letter to select
   * @param group changes of one group, such as typing, are undone together */
  edit(text: string, caret: number, group: string = "") {
    const unknown = this.vocabulary.unknown(text);
    if (unknown.length) {
      const rest = (part: string) => [...part].filter((letter) => !unknown.includes(letter)).join("");
      caret = rest(text.slice(0, caret)).length;
      text = rest(text);
      const all = [...new Set([...(this.state.message ? this.unknown : []), ...unknown])];
      const named = all.slice(0, 5).map((letter) => `“${letter}”`);
      this.say(`This model has never seen ${named.join(", ")}${all.length > 5 ? " and others" : ""}: left out.`);
      this.unknown = all;
    }
    const isTooLong = [...text].length > MAX_LETTERS;
    if (isTooLong) this.say(`The text is limited to ${MAX_LETTERS.toLocaleString("en")} letters.`);
    if (text === "") this.say("The model needs at least one letter to start from.");
    if (isTooLong || text === "" || text === this.state.text) return this.stop();
    this.history.record(this.version(), group, performance.now());
    this.showText(text, caret);
  }

  /** The text and the selected letter, as Undo brings them back. */
  version() {
    const { text, selected } = this.state;
    return { text, selected };
  }

  showText(text: string, caret: number) {
    const { letters, ids } = this.vocabulary.encode(text);
    const after = letters.findIndex((letter) => letter.end >= caret);
    this.writer.endLetter();
    this.set({ text, letters, ids, selected: after < 0 ? letters.length - 1 : after });
    this.ask();
  }

  undo() {
    this.stop();
    const version = this.history.past.pop();
    this.history.endGroup();
    if (!version) return this.say("Nothing to undo.");
    this.showText(version.text, 0);
    this.select(version.selected);
  }

  /** Show all as the page did at its start. Undo brings the text back. */
  restart() {
    if (this.state.text !== this.payload.text) this.history.record(this.version(), "", 0);
    this.writer.stop();
    this.set(this.beginning());
    this.ask();
  }

  /** Select a letter. */
  select(index: number) {
    const selected = Math.min(Math.max(0, index), this.state.letters.length - 1);
    this.history.endGroup();
    this.writer.stop();
    this.set({ selected });
    this.ask();
  }

  // --- writing ---

  /** Continue after the selected letter with this token. What followed is cut; Undo brings it back. */
  continueWith(id: number) {
    const { text, letters, selected } = this.state;
    const { group } = this.writer;
    const letter = this.writer.add(id);
    if (!letter) return this.ask();
    if (selected < letters.length - 1) this.say("This replaced the rest of the text: Undo brings it back.");
    const continued = text.slice(0, letters[selected].end) + letter;
    this.edit(continued, continued.length, group);
  }

  /** Let the model choose the next letter, as soon as it has computed this one. */
  step() {
    this.writer.start("step");
    this.writeToken();
  }

  /** Start or stop writing. */
  write() {
    this.history.endGroup();
    if (this.writer.isWriting) return this.stop();
    this.writer.start("write");
    this.ask();
    this.writeToken();
  }

  stop() {
    this.writer.stop();
    this.ask();
  }

  /** Write a token, if the model is to write and has computed the selected letter. */
  writeToken() {
    const look = this.fresh();
    if (look && this.writer.mode !== "idle") this.continueWith(choose(this.weights(look.logits), Math.random()));
  }

  /** The unnormalized probability of each token, after temperature and filters. */
  weights(logits: Float32Array) {
    return weigh(logits, this.state.sampling);
  }

  /** The probabilities of the next token at the chosen temperature, before the filters. */
  probabilities(logits: Float32Array) {
    const temperature = Math.max(0.01, this.state.sampling.temperature);
    return softmax(logits.map((logit) => logit / temperature));
  }

  // --- heads and models ---

  choose(head: Head) {
    this.head = head;
    this.set({ head, shade: "head" });
  }

  /** Switch a head off or on. */
  toggle(head: Head) {
    const muted = new Set(this.muted);
    if (!muted.delete(this.index(head))) muted.add(this.index(head));
    this.mute(muted);
  }

  /** Switch these heads off, and all others on. @param heads layer * n_head + head */
  mute(heads: Iterable<number>) {
    const { model, muted } = this.state;
    this.history.endGroup();
    const isSame = (index: number) => index === model || (this.moment >= 0 && this.film.includes(index));
    this.set({ muted: muted.map((set, index) => (isSame(index) ? new Set(heads) : set)) });
    this.ask();
  }

  /** Show another moment of the film. What it computed for the text is often here already. */
  moveTo(model: number) {
    if (model === this.state.model) return;
    this.writer.stop();
    this.show(model);
  }

  /** Compare what the page shows from now on with this model, or end that. */
  pin() {
    this.set({ pinned: this.state.pinned === null ? this.state.model : null });
    this.ask();
  }

  show(model: number) {
    this.history.endGroup();
    this.set({ model, head: this.has(model, this.head) ? this.head : null, preview: null });
    this.ask();
  }

  // --- the engine ---

  /** Ask the engine what the page needs to know about the selected letter. */
  ask() {
    this.before = this.before.map((look, model) => this.fresh(model) ?? look);
    this.positions = this.payload.models.map((_, model) => this.position(model));
    this.answers.want(`${this.state.selected} ${this.writer.bytes} ${this.state.text}`, this.wanted());
    this.set({});
  }

  /** What the page needs, the most important first. While the model writes, the rest waits. */
  wanted(): Question[] {
    const { model, pinned, selected, letters } = this.state, { positions, once, film, event } = this;
    const shown = positions[model], looks = [shown, positions[pinned ?? model]];
    const sheets = once.filter(({ kind }) => kind !== "logits");
    if (this.writer.isWriting) return [...looks.map((position) => ask("look", position)), ...sheets];
    if (film.length) looks.push(positions[film[film.length - 1]], this.end);
    looks.push(this.position(model, []));
    return [
      ...looks.map((position) => ask("look", position)),
      ...sheets,
      ...(selected === letters.length - 1 ? [ask("write", shown)] : []),
      ...this.effects(shown),
      ...(film.length ? this.effects(this.end) : []),
      ...[...film].reverse().map((index) => ask("moment", positions[index])),
      ...(event > 0 ? [event - 1, event].map((moment) => ask("write", positions[film[moment]])) : []),
      ...once,
    ];
  }

  /** The end of the film with all heads on: the heads that matter there have lanes. */
  get end() {
    return this.position(this.film.at(-1) as number, []);
  }

  /** Whether everything that the film shows is known. */
  get isFilmComplete() {
    return this.film.length > 0 && this.film.every((index) => this.isCurrent(index)) &&
      this.effects(this.end).every((question) => this.answers.has(question));
  }

  /** The moment at which the chance of the letter changes most, or -1. */
  get event() {
    return this.isFilmComplete ? eventOf(curveOf(this)) : -1;
  }

  /** What each head changes. The last layer comes first: muting a head changes nothing below it. */
  effects(position: Position): Question[] {
    const { model, muted } = position, { heads } = this.payload.models[model];
    const layers = heads.map((row, layer) => row.map((_, head) => ({ layer, head })));
    return layers.reverse().flat().flatMap((head) => {
      const index = this.index(head, model), key = `${position.key} effect ${index}`;
      return muted.includes(index) ? [] : { kind: "effect" as const, key, position, ...head, index };
    });
  }

  /** How many letters a model sees at most: all of them if it has a hidden state. @param index of the model */
  context(index: number) {
    const { config } = this.payload.models[index];
    return isRecurrent(config) ? Infinity : config.context;
  }

  /** Where a model is asked about the selected letter. @param off heads */
  position(model: number, off: Iterable<number> = this.state.muted[model]): Position {
    const { letters, ids, selected } = this.state;
    const { bytes } = this.writer;
    const context = this.context(model);
    const length = letters[selected].last + 1;
    const from = windowStart(length + bytes.length, context), muted = [...off].sort((a, b) => a - b);
    const seen = bytes.length ? [...ids.slice(from, length), ...bytes] : ids.slice(from, from + context);
    return { model, from, ids: seen, selected: length + bytes.length - 1 - from, muted, key: `${model} ${muted}` };
  }

  /** Ask about a head, for a sheet. A later request replaces it. */
  askOnce<K extends "detail" | "matrix">(
    kind: K, head: Head, use: (reply: Extract<Reply, { kind: K }>, position: Position) => void,
  ) {
    const position = this.positions[this.state.model], key = `sheet ${this.sheets++}`;
    const show = (reply: any) => reply.kind !== "error" && use(reply, position);
    this.once = this.once.filter((question) => question.kind === "logits");
    this.once.push({ kind, key, position, ...head, use: show });
    this.ask();
  }

  /** Go on after an answer. */
  learn(question: Question, reply: Reply) {
    const { kind, position, use } = question, isShown = position.key === this.positions[this.state.model].key;
    this.once = this.once.filter((other) => other !== question);
    if (reply.kind === "error" && kind !== "logits") {
      this.say(reply.message);
      if (position.model === this.state.model) this.stop();
    }
    use?.(reply);
    if (kind !== "write" && this.isFilmComplete) this.ask(); // what happens in the film is known
    if (kind === "look" || use) this.set({});
    else this.shared ??= setTimeout(() => {
      this.shared = undefined;
      this.set({});
    }, TOGETHER);
    if (kind !== "look" || !isShown) return;
    if (this.writer.isWriting) setTimeout(() => this.writer.isWriting && this.writeToken(), PAUSE);
    else this.writeToken();
  }
}

function ask(kind: "look" | "moment" | "write", position: Position): Question {
  return { kind, key: kind === "write" ? `${position.key} write` : position.key, position };
}
