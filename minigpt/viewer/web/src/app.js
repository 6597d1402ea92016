/** What the page shows, and what its visitor can do. Panels draw from the state; only this file changes it. */

import { Answers } from "./answers.js";
import { choose, softmax, weigh } from "./filters.js";
import { History } from "./history.js";
import { windowStart } from "./letters.js";
import { isRecurrent } from "./weights.js";
import { Writer } from "./writer.js";

/** @typedef {import("./letters.js").Letter} Letter */
/** @typedef {import("./types.js").Model} Model */
/** @typedef {{layer: number, head: number}} Head */
/** @typedef {import("./answers.js").Look} Look */
/** @typedef {import("./answers.js").Position} Position */
/** @typedef {import("./answers.js").Question} Question */
/** @typedef {"head" | "surprise" | "learned" | "nothing"} Shade */
/**
 * @typedef {{text: string, letters: Letter[], ids: number[], selected: number, model: number, pinned: number | null,
 *   compared: number | null, head: Head | null, preview: Head | null, pointed: number, shade: Shade,
 *   muted: Set<number>[], sampling: import("./filters.js").Filters, message: string}} State
 *   ids: all tokens of the text; selected: the index of a letter; pinned: a moment of the film, and compared: a run, to
 *   compare `model` with; head: the chosen one; preview: the one under the mouse; pointed: the index of a letter to
 *   mark, or -1; muted: by model; message: what the visitor should know
 */

export const MAX_LETTERS = 20_000;
/** Milliseconds between two letters, so that eyes can follow. */
const PAUSE = 30;
/** Milliseconds that a message stays. */
const NOTICE = 6000;

export class App {
  /** @param {import("./types.js").Payload} payload
   * @param {import("./letters.js").Vocabulary} vocabulary
   * @param {(request: import("./session.js").Request) => void} send sends a request to the engine */
  constructor(payload, vocabulary, send) {
    this.payload = payload;
    this.vocabulary = vocabulary;
    /** @type {((state: State) => void)[]} */
    this.panels = [];
    this.history = new History();
    this.writer = new Writer(vocabulary);
    /** @type {string[]} letters that the message names */
    this.unknown = [];
    this.notice = /** @type {ReturnType<typeof setTimeout> | undefined} */ (undefined);
    this.answers = new Answers(send, (question, reply) => this.learn(question, reply));
    /** @type {Position[]} where each model is asked about the selected letter */
    this.positions = [];
    /** @type {(Look | null)[]} the last look of each model before, to show until the new one comes */
    this.before = payload.models.map(() => null);
    /** @type {Question[]} what is asked once: the newest request for details, and checks of the arithmetic */
    this.once = [];
    this.sheets = 0;
    /** @type {number[]} the moments of the run that the page is about, as models, by their steps; empty if only one */
    this.film = payload.film;
    const { letters, ids } = vocabulary.encode(payload.text);
    /** @type {Head | null} the chosen one, which a model may not have */
    this.head = payload.head && { layer: payload.head[0], head: payload.head[1] };
    const isShown = this.has(0, this.head);
    this.start = Math.max(0, letters.findIndex((letter) => letter.last >= payload.selected));
    /** @type {State} */
    this.state = {
      text: payload.text, letters, ids, selected: this.start, pointed: -1,
      model: 0, pinned: null, compared: null, muted: payload.models.map(() => new Set()),
      head: isShown ? this.head : null, preview: null, shade: isShown ? "head" : "surprise",
      sampling: { ...payload.sample }, message: "",
    };
  }

  /** @returns {Model} the model that the text and the heads show */
  get model() {
    return this.payload.models[this.state.model];
  }

  /** The model to compare the shown one with. @returns {number | null} */
  get other() {
    return this.state.pinned ?? this.state.compared;
  }

  /** What the shown model computed: about the selected letter, or about the last one until the answer comes.
   * @returns {Look | null} */
  get look() {
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

  /** What a model computed, if it is about the selected letter. @param {number | null} [model] */
  fresh(model = this.state.model) {
    return model === null ? null : this.answers.look(this.positions[model]);
  }

  /** The heads that are switched off, as layer * n_head + head. */
  get muted() {
    return this.state.muted[this.state.model];
  }

  /** The head that shades the text. @returns {Head | null} */
  get shadingHead() {
    const { head, preview, shade } = this.state;
    return preview ?? (shade === "head" ? head : null);
  }

  /** The color of the shades, for a style. */
  get hue() {
    if (this.shadingHead) return `var(--head-${this.shadingHead.head % 8})`;
    return this.state.shade === "learned" ? "var(--head-1)" : "var(--red)";
  }

  /** @param {Head} head @param {number} [model] @returns {number} layer * n_head + head */
  index({ layer, head }, model = this.state.model) {
    return layer * this.payload.models[model].config.n_head + head;
  }

  /** Whether a model has a head. @param {number} model @param {Head | null} head */
  has(model, head) {
    return Boolean(head && this.payload.models[model].heads[head.layer]?.[head.head]);
  }

  /** Change the state, and draw it in the next frame. @param {Partial<State>} changes */
  set(changes) {
    Object.assign(this.state, changes);
    if (this.isScheduled) return;
    this.isScheduled = true;
    requestAnimationFrame(() => {
      this.isScheduled = false;
      for (const draw of this.panels) draw(this.state);
    });
  }

  /** Tell the visitor something for some seconds, whatever happens meanwhile. @param {string} message */
  say(message) {
    this.unknown = [];
    clearTimeout(this.notice);
    this.notice = setTimeout(() => this.set({ message: "" }), NOTICE);
    this.set({ message });
  }

  // --- the text ---

  /** Change the text. Unknown letters are left out and named.
   * @param {string} text
   * @param {number} caret the offset after the letter to select
   * @param {string} [group] changes of one group, such as typing, are undone together */
  edit(text, caret, group = "") {
    const unknown = this.vocabulary.unknown(text);
    if (unknown.length) {
      const rest = (/** @type {string} */ part) => [...part].filter((letter) => !unknown.includes(letter)).join("");
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

  /** @param {string} text @param {number} caret */
  showText(text, caret) {
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

  /** @param {import("./history.js").Version | undefined} version to show @param {string} nothing if there is none */
  travel(version, nothing) {
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

  /** Select a letter. @param {number} index */
  select(index) {
    const selected = Math.min(Math.max(0, index), this.state.letters.length - 1);
    this.history.endGroup();
    this.writer.stop();
    this.set({ selected });
    this.ask();
  }

  // --- writing ---

  /** Continue after the selected letter with this token. What followed is cut; Undo brings it back.
   * @param {number} id */
  continueWith(id) {
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

  /** The unnormalized probability of each token, after temperature and filters. @param {Look} look */
  weights(look) {
    return weigh(look.logits, this.state.sampling);
  }

  /** The probabilities of the next token at the chosen temperature, before the filters. @param {Float32Array} logits */
  probabilities(logits) {
    const temperature = Math.max(0.01, this.state.sampling.temperature);
    return softmax(logits.map((logit) => logit / temperature));
  }

  // --- heads and models ---

  /** @param {Head} head */
  choose(head) {
    this.head = head;
    this.set({ head, shade: "head" });
  }

  /** Switch a head off or on. @param {Head} head */
  toggle(head) {
    const muted = new Set(this.muted);
    if (!muted.delete(this.index(head))) muted.add(this.index(head));
    this.mute(muted);
  }

  /** Switch these heads off, and all others on. @param {Iterable<number>} heads layer * n_head + head */
  mute(heads) {
    const { model, muted } = this.state;
    this.history.endGroup();
    const isSame = (/** @type {number} */ index) => index === model || (this.moment >= 0 && this.film.includes(index));
    this.set({ muted: muted.map((set, index) => (isSame(index) ? new Set(heads) : set)) });
    this.ask();
  }

  /** Show another moment of the film. What it computed for the text is often here already. @param {number} model */
  moveTo(model) {
    if (model === this.state.model) return;
    this.writer.stop();
    this.show(model);
  }

  /** Compare all moments with this one, or end that. */
  pin() {
    this.set({ pinned: this.state.pinned === null ? this.state.model : null });
    this.ask();
  }

  /** Show a model, and compare it with a run, which replaces the pinned moment.
   * @param {number} model @param {number | null} compared */
  compare(model, compared) {
    const { model: before, pinned } = this.state, isSame = compared === this.state.compared;
    if (compared === model) compared = before === model ? null : before;
    this.set({ compared, pinned: isSame ? pinned : null });
    this.show(model);
  }

  /** @param {number} model */
  show(model) {
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

  /** What the page needs, the most important first. While the model writes, the rest waits. @returns {Question[]} */
  wanted() {
    const { model, selected, letters } = this.state, { positions, once } = this, shown = positions[model];
    const looks = [shown, positions[this.other ?? model]], sheets = once.filter(({ kind }) => kind !== "logits");
    if (this.writer.isWriting) return [...looks.map(lookAt), ...sheets];
    const write = /** @type {Question} */ ({ kind: "write", key: `${shown.key} write`, position: shown });
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
    return this.position(/** @type {number} */ (this.film.at(-1)), []);
  }

  /** Whether everything that the film shows is known. */
  get isFilmComplete() {
    return this.film.every((index) => this.isCurrent(index)) &&
      this.effects(this.end).every((question) => this.answers.has(question));
  }

  /** What each head changes. The last layer comes first: muting a head changes nothing below it.
   * @param {Position} position @returns {Question[]} */
  effects(position) {
    const { model, muted } = position, { heads } = this.payload.models[model];
    const layers = heads.map((row, layer) => row.map((_, head) => ({ layer, head })));
    return layers.reverse().flat().flatMap((head) => {
      const index = this.index(head, model), key = `${position.key} effect ${index}`;
      return muted.includes(index) ? [] : { kind: /** @type {const} */ ("effect"), key, position, ...head, index };
    });
  }

  /** How many letters a model sees at most: all of them if it has a hidden state. @param {number} index of the model */
  context(index) {
    const { config } = this.payload.models[index];
    return isRecurrent(config) ? Infinity : config.context;
  }

  /** Where a model is asked about the selected letter. @param {number} model
   * @param {Iterable<number>} [off] heads @returns {Position} */
  position(model, off = this.state.muted[model]) {
    const { letters, ids, selected } = this.state;
    const { bytes } = this.writer;
    const context = this.context(model);
    const length = letters[selected].last + 1;
    const from = windowStart(length + bytes.length, context), muted = [...off].sort((a, b) => a - b);
    const seen = bytes.length ? [...ids.slice(from, length), ...bytes] : ids.slice(from, from + context);
    return { model, from, ids: seen, selected: length + bytes.length - 1 - from, muted, key: `${model} ${muted}` };
  }

  /** Ask about a head, for a sheet. A later request replaces it.
   * @template {"detail" | "matrix"} K @param {K} kind @param {Head} head
   * @param {(reply: Extract<import("./session.js").Reply, {kind: K}>, position: Position) => void} use */
  askOnce(kind, head, use) {
    const position = this.positions[this.state.model], key = `sheet ${this.sheets++}`;
    const show = (/** @type {any} */ reply) => reply.kind !== "error" && use(reply, position);
    this.once = this.once.filter((question) => question.kind === "logits");
    this.once.push({ kind, key, position, ...head, use: show });
    this.ask();
  }

  /** Go on after an answer. @param {Question} question @param {import("./session.js").Reply} reply */
  learn(question, reply) {
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

/** @param {Position} position @returns {Question} */
function lookAt(position) {
  return { kind: "look", key: position.key, position };
}
