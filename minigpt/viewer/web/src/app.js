/** What the page shows, and what its visitor can do. Panels draw from the state; only this file changes it. */

import { choose, softmax, weigh } from "./filters.js";
import { History } from "./history.js";
import { windowStart } from "./letters.js";
import { isRecurrent } from "./weights.js";
import { Writer } from "./writer.js";

/** @typedef {import("./letters.js").Letter} Letter */
/** @typedef {import("./types.js").Model} Model */
/** @typedef {{layer: number, head: number}} Head */
/** @typedef {import("./session.js").Reply} Reply */
/**
 * A letter, as a request describes it to the engine.
 * @typedef {object} Position
 * @property {number} id of the request
 * @property {number} model
 * @property {number} from the first token that the model sees
 * @property {number[]} ids the tokens from there to the end of the window
 * @property {number} selected the index of the selected token in `ids`
 * @property {number[]} muted heads, as layer * n_head + head
 */
/**
 * What a model computed for the selected letter.
 * @typedef {object} Answer
 * @property {Float32Array} logits of the next token, (V)
 * @property {Float32Array} surprise the probability of each token, given those before it, (T)
 * @property {Float32Array} attention rows of the selected letter, (L, H, selected + 1)
 * @property {Map<number, Float32Array>} effects logits without a head, by layer * n_head + head
 * @property {Float32Array} [whole] logits of the next token with all heads on
 * @property {number[]} [written] the most likely continuation
 */
/** @typedef {Position & Answer} Look */
/** @typedef {"head" | "surprise" | "learned" | "nothing"} Shade */
/**
 * @typedef {{text: string, letters: Letter[], ids: number[], selected: number, model: number, other: number | null,
 *   head: Head | null, preview: Head | null, pointed: number, shade: Shade,
 *   muted: Set<number>[], sampling: import("./filters.js").Filters, message: string, looks: (Look | null)[]}} State
 *   ids: all tokens of the text; selected: the index of a letter; other: a model to compare `model` with; head: the
 *   chosen one; preview: the one under the mouse; pointed: the index of a letter to mark, or -1; muted and looks: by
 *   model; message: what the visitor should know
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
    this.send = send;
    /** @type {((state: State) => void)[]} */
    this.panels = [];
    this.history = new History();
    this.writer = new Writer(vocabulary);
    /** @type {string[]} letters that the message names */
    this.unknown = [];
    this.notice = /** @type {ReturnType<typeof setTimeout> | undefined} */ (undefined);
    this.requests = 0;
    /** @type {Position[]} the newest request by model */
    this.asked = [];
    /** @type {Map<string, number>} ids of requests that add to a look, by what they add and the id of the look */
    this.additions = new Map();
    /** @type {number[]} the moments of the run that the page is about, as models, by their steps; empty if only one */
    this.film = payload.film;
    /** @type {{id: number, use: (reply: any) => void} | undefined} the newest request for details */
    this.details = undefined;
    const { letters, ids } = vocabulary.encode(payload.text);
    /** @type {Head | null} the chosen one, which a model may not have */
    this.head = payload.head && { layer: payload.head[0], head: payload.head[1] };
    const isShown = this.has(0, this.head);
    this.start = Math.max(0, letters.findIndex((letter) => letter.last >= payload.selected));
    /** @type {State} */
    this.state = {
      text: payload.text,
      letters,
      ids,
      selected: this.start,
      model: 0,
      other: null,
      head: isShown ? this.head : null,
      preview: null,
      pointed: -1,
      shade: isShown ? "head" : "surprise",
      muted: payload.models.map(() => new Set()),
      sampling: { ...payload.sample },
      message: "",
      looks: payload.models.map(() => null),
    };
  }

  /** @returns {Model} the model that the text and the heads show */
  get model() {
    return this.payload.models[this.state.model];
  }

  /** @returns {Look | null} */
  get look() {
    return this.state.looks[this.state.model];
  }

  /** The index in the film of the model that the page shows, or -1. */
  get moment() {
    return this.film.indexOf(this.state.model);
  }

  /** Whether a model's look is about the selected letter. */
  isCurrent(model = this.state.model) {
    return this.state.looks[model]?.id === this.asked[model]?.id;
  }

  /** What a model computed, if it is about the selected letter. @param {number | null} [model] */
  fresh(model = this.state.model) {
    return model !== null && this.isCurrent(model) ? this.state.looks[model] : null;
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
    if (this.writer.isWriting) {
      this.stop();
      return this.ask(); // for the effects of heads
    }
    this.writer.start("write");
    this.set({});
    this.writeToken();
  }

  stop() {
    this.writer.stop();
    this.set({});
  }

  /** Write a token, if the model is to write and has computed the selected letter. */
  writeToken() {
    if (this.writer.mode === "idle" || !this.look || !this.isCurrent()) return;
    this.continueWith(choose(this.weights(this.look), Math.random()));
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
    this.request([model, ...[...this.film].reverse()].filter((index) => !this.fresh(index)));
    this.askMore();
  }

  /** Compare all moments with this one, or end that. */
  pin() {
    const isPinned = this.film.includes(this.state.other ?? -1);
    this.set({ other: isPinned ? null : this.state.model });
  }

  /** @param {number} model @param {number | null} other */
  compare(model, other) {
    const before = this.state.model;
    if (other === model) other = before === model ? null : before;
    this.show(model, other);
    this.ask();
  }

  /** @param {number} model to show @param {number | null} [other] to compare it with */
  show(model, other = this.state.other) {
    this.history.endGroup();
    this.set({ model, other, head: this.has(model, this.head) ? this.head : null, preview: null, pointed: -1 });
  }

  // --- the engine ---

  /** Ask the engine about the selected letter. */
  ask() {
    const { model, other } = this.state, { isWriting } = this.writer;
    for (const index of this.film) delete this.asked[index];
    this.additions.clear();
    this.request([model, other ?? model, ...(isWriting ? [] : [...this.film].reverse())]);
    if (!isWriting) this.askMore();
  }

  /** Ask models about the selected letter. The film can wait, except for its end, whose heads have lanes.
   * @param {number[]} models */
  request(models) {
    const urgent = [this.state.model, this.state.other, this.film.at(-1)];
    for (const index of new Set(models)) {
      this.asked[index] = this.position(index);
      this.send(urgent.includes(index) ? this.asked[index] : { ...this.asked[index], kind: "film" });
    }
  }

  /** Ask what each head changes, last in the model that is shown, which is answered first, and what it would write. */
  askMore() {
    const { model, selected, letters } = this.state;
    for (const index of new Set([this.film.at(-1) ?? model, model])) this.add("effects", index);
    if (selected === letters.length - 1) this.add("write", model);
  }

  /** Ask, once, for something that belongs to the newest look of a model. @param {"effects" | "write"} kind
   * @param {number} model */
  add(kind, model) {
    const key = `${kind} ${this.asked[model].id}`;
    if (this.additions.has(key)) return;
    this.additions.set(key, this.requests++);
    this.send({ ...this.asked[model], id: /** @type {number} */ (this.additions.get(key)), kind });
  }

  /** How many letters a model sees at most: all of them if it has a hidden state. @param {number} index of the model */
  context(index) {
    const { config } = this.payload.models[index];
    return isRecurrent(config) ? Infinity : config.context;
  }

  /** What the engine needs to know about the selected letter. @param {number} index of the model @returns {Position} */
  position(index) {
    const { letters, ids, selected, muted } = this.state;
    const { bytes } = this.writer;
    const context = this.context(index);
    const length = letters[selected].last + 1;
    const from = windowStart(length + bytes.length, context);
    const seen = bytes.length ? [...ids.slice(from, length), ...bytes] : ids.slice(from, from + context);
    const at = length + bytes.length - 1 - from;
    return { id: this.requests++, model: index, from, ids: seen, selected: at, muted: [...muted[index]] };
  }

  /** Ask about a head once, for a panel that shows details. A later request cancels it.
   * @template {"detail" | "matrix"} K @param {K} kind @param {Head} head
   * @param {(reply: Extract<Reply, {kind: K}>, position: Position) => void} use */
  askOnce(kind, head, use) {
    const position = this.position(this.state.model);
    this.details = { id: position.id, use: (reply) => use(reply, position) };
    this.send({ ...position, kind, ...head });
  }

  /** Receive a reply of the engine. @param {Reply} reply */
  receive(reply) {
    const { details } = this;
    if (reply.kind === "error") this.say(reply.message);
    if (reply.id === details?.id) {
      this.details = undefined;
      if (reply.kind !== "error") details.use(reply);
    } else if ("model" in reply) {
      const isAsked = reply.id === this.asked[reply.model]?.id || [...this.additions.values()].includes(reply.id);
      if (isAsked) this.learn(reply);
    }
  }

  /** Add an answer to what is known about the selected letter.
   * @param {Exclude<Reply, {kind: "detail" | "matrix" | "logits"}>} reply */
  learn(reply) {
    const { model, looks } = this.state;
    const look = looks[reply.model];
    if (reply.kind === "look") looks[reply.model] = { ...this.asked[reply.model], ...reply, effects: new Map() };
    if (reply.kind === "whole" && look) look.whole = reply.logits;
    if (reply.kind === "write" && look) look.written = reply.ids;
    if (reply.kind === "effect") {
      look?.effects.set(this.index(reply, reply.model), reply.logits);
    }
    if (reply.kind === "error") {
      looks[reply.model] = null;
      delete this.asked[reply.model]; // nothing more will come
      if (reply.model === model) this.writer.stop();
    }
    this.set({});
    if (reply.kind !== "look" || reply.model !== model) return;
    if (this.writer.isWriting) setTimeout(() => this.writer.isWriting && this.writeToken(), PAUSE);
    else this.writeToken();
  }
}
