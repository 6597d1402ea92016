/** What the page shows, and what its visitor can do. Panels draw from the state; only this file changes it. */

import { Answers } from "./answers.js";
import { choose, softmax, weigh } from "./filters.js";
import { History } from "./history.js";
import { windowStart } from "./letters.js";
import { isRecurrent } from "./weights.js";
import { Writer } from "./writer.js";
import type { Letter, Vocabulary } from "./letters.js";
import type { Model, Payload } from "./types.js";
import type { Look, Position, Question } from "./answers.js";
import type { Filters } from "./filters.js";
import type { Reply, Request } from "./session.js";
import type { Version } from "./history.js";

export type Head = { layer: number, head: number };
export type Shade = "head" | "surprise" | "learned" | "nothing";
export type State = {
  text: string;
  letters: Letter[];
  /** all tokens of the text */
  ids: number[];
  /** the index of a letter */
  selected: number;
  model: number;
  /** a moment of the film to compare `model` with */
  pinned: number | null;
  /** a run to compare `model` with */
  compared: number | null;
  /** the chosen one */
  head: Head | null;
  /** the one under the mouse */
  preview: Head | null;
  /** the index of a letter to mark, or -1 */
  pointed: number;
  shade: Shade;
  /** heads that are switched off, by model */
  muted: Set<number>[];
  sampling: Filters;
  /** what the visitor should know */
  message: string;
};

export const MAX_LETTERS = 20_000;
/** Milliseconds between two letters, so that eyes can follow. */
const PAUSE = 30;
/** Milliseconds that a message stays. */
const NOTICE = 6000;

export class App {
  panels: ((state: State) => void)[] = [];
  history = new History();
  writer: Writer;
  answers: Answers;
  /** Letters that the message names. */
  unknown: string[] = [];
  notice: ReturnType<typeof setTimeout> | undefined;
  isScheduled = false;
  /** Where each model is asked about the selected letter. */
  positions: Position[] = [];
  /** The last look of each model before, to show until the new one comes. */
  before: (Look | null)[];
  /** What is asked once: the newest request for details, and checks of the arithmetic. */
  once: Question[] = [];
  sheets = 0;
  /** The moments of the run that the page is about, as models, by their steps; empty if only one. */
  film: number[];
  /** The chosen head, which a model may not have. */
  head: Head | null;
  /** The letter that is selected first. */
  start: number;
  state: State;

  /** @param send sends a request to the engine */
  constructor(readonly payload: Payload, readonly vocabulary: Vocabulary, send: (request: Request) => void) {
    this.writer = new Writer(vocabulary);
    this.answers = new Answers(send, (question, reply) => this.learn(question, reply));
    this.before = payload.models.map(() => null);
    this.film = payload.film;
    const { letters, ids } = vocabulary.encode(payload.text);
    this.head = payload.head && { layer: payload.head[0], head: payload.head[1] };
    const isShown = this.has(0, this.head);
    this.start = Math.max(0, letters.findIndex((letter) => letter.last >= payload.selected));
    this.state = {
      text: payload.text, letters, ids, selected: this.start, pointed: -1,
      model: 0, pinned: null, compared: null, muted: payload.models.map(() => new Set()),
      head: isShown ? this.head : null, preview: null, shade: isShown ? "head" : "surprise",
      sampling: { ...payload.sample }, message: "",
    };
  }

  /** @returns the model that the text and the heads show */
  get model(): Model {
    return this.payload.models[this.state.model];
  }

  /** The model to compare the shown one with. */
  get other(): number | null {
    return this.state.pinned ?? this.state.compared;
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
  index({ layer, head }: Head, model: number = this.state.model): number {
    return layer * this.payload.models[model].config.n_head + head;
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
    this.state.pointed = -1;
    this.set({ text, letters, ids, selected: after < 0 ? letters.length - 1 : after });
    this.ask();
  }

  undo() {
    this.travel(this.history.undo(this.version()), "Nothing to undo.");
  }

  redo() {
    this.travel(this.history.redo(this.version()), "Nothing to redo.");
  }

  /** @param version to show @param nothing if there is none */
  travel(version: Version | undefined, nothing: string) {
    this.stop();
    if (!version) return this.say(nothing);
    this.showText(version.text, 0);
    this.select(version.selected);
  }

  /** Go back to the text and the letter that the page started with. */
  restart() {
    this.edit(this.payload.text, 0);
    this.select(this.start);
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
    if (look && this.writer.mode !== "idle") this.continueWith(choose(this.weights(look), Math.random()));
  }

  /** The unnormalized probability of each token, after temperature and filters. */
  weights(look: Look) {
    return weigh(look.logits, this.state.sampling);
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

  /** Compare all moments with this one, or end that. */
  pin() {
    this.set({ pinned: this.state.pinned === null ? this.state.model : null });
    this.ask();
  }

  /** Show a model, and compare it with a run, which replaces the pinned moment. */
  compare(model: number, compared: number | null) {
    const { model: before, pinned } = this.state, isSame = compared === this.state.compared;
    if (compared === model) compared = before === model ? null : before;
    this.set({ compared, pinned: isSame ? pinned : null });
    this.show(model);
  }

  show(model: number) {
    this.history.endGroup();
    this.set({ model, head: this.has(model, this.head) ? this.head : null, preview: null, pointed: -1 });
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
    const { model, selected, letters } = this.state, { positions, once } = this, shown = positions[model];
    const looks = [shown, positions[this.other ?? model]], sheets = once.filter(({ kind }) => kind !== "logits");
    if (this.writer.isWriting) return [...looks.map(lookAt), ...sheets];
    const write = { kind: "write", key: `${shown.key} write`, position: shown } as Question;
    const [end, ...film] = [...this.film].reverse().map((index) => positions[index]);
    return [
      ...[...looks, ...(end ? [end] : []), this.position(model, [])].map(lookAt),
      ...sheets,
      ...(selected === letters.length - 1 ? [write] : []),
      ...this.effects(shown),
      ...(end ? [lookAt(this.end), ...this.effects(this.end)] : []),
      ...film.map(lookAt),
      ...once,
    ];
  }

  /** The end of the film with all heads on: the heads that matter there have lanes. */
  get end() {
    return this.position(this.film.at(-1) as number, []);
  }

  /** Whether everything that the film shows is known. */
  get isFilmComplete() {
    return this.film.every((index) => this.isCurrent(index)) &&
      this.effects(this.end).every((question) => this.answers.has(question));
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
    this.set({});
    if (kind !== "look" || !isShown) return;
    if (this.writer.isWriting) setTimeout(() => this.writer.isWriting && this.writeToken(), PAUSE);
    else this.writeToken();
  }
}

function lookAt(position: Position): Question {
  return { kind: "look", key: position.key, position };
}
