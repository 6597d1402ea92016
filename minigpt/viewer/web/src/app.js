/** What the page shows, and what its visitor can do. Panels draw from the state; only this file changes it. */

import { choose, penalize, softmax, weigh } from "./filters.js";
import { History } from "./history.js";
import { isUnfinished, windowStart } from "./letters.js";
import { isRecurrent } from "./weights.js";

/** @typedef {import("./letters.js").Letter} Letter */
/** @typedef {import("./types.js").Model} Model */
/** @typedef {{layer: number, head: number}} Head */
/** @typedef {import("./filters.js").Filters & {repetition_penalty: number}} Sampling */
/**
 * What a model computed for the selected letter.
 * @typedef {object} Look
 * @property {number} from the first token that the model sees
 * @property {number[]} ids the tokens from there to the end of the window
 * @property {number} at the index of the selected token in `ids`
 * @property {Float32Array} logits of the next token, (V)
 * @property {Float32Array} surprise the probability of each token, given those before it, (T)
 * @property {Float32Array} attention rows of the selected letter, (L, H, at + 1)
 * @property {Map<number, Float32Array>} effects logits without a head, by layer * n_head + head
 * @property {Float32Array} [whole] logits of the next token with all heads on
 * @property {number[]} [written] the most likely continuation
 * @property {number} id of the request
 */
/**
 * @typedef {{text: string, letters: Letter[], ids: number[], selected: number, model: number, other: number | null,
 *   head: Head | null, shade: "head" | "surprise" | "nothing", muted: Set<number>[], sampling: Sampling,
 *   isWriting: boolean, message: string, looks: (Look | null)[]}} State
 *   ids: all tokens of the text; selected: the index of a letter; other: a model to compare `model` with; head: the
 *   chosen one; muted and looks: by model; message: what the visitor should know
 */

export const MAX_LETTERS = 20_000;
/** Milliseconds between two letters, so that eyes can follow. */
const PAUSE = 30;
/** Milliseconds that a message stays. */
const NOTICE = 6000;

export class App {
  /** @param {import("./types.js").Payload} payload
   * @param {import("./letters.js").Vocabulary} vocabulary
   * @param {(request: any) => void} send sends a request to the engine */
  constructor(payload, vocabulary, send) {
    this.payload = payload;
    this.vocabulary = vocabulary;
    this.send = send;
    /** @type {((state: State) => void)[]} */
    this.panels = [];
    this.history = new History();
    /** @type {string[]} letters that the message names */
    this.unknown = [];
    this.notice = /** @type {ReturnType<typeof setTimeout> | undefined} */ (undefined);
    this.requests = 0;
    /** @type {{id: number, from: number, ids: number[], at: number}[]} the newest request by model */
    this.asked = [];
    /** @type {Map<number, number>} models by the ids of requests that add to their looks */
    this.additions = new Map();
    /** @type {number[]} the models of the run that the page is about, by their steps; empty if there is only one */
    this.film = [...payload.models.keys()].filter((index) => payload.models[index].name === payload.models[0].name);
    this.film.sort((a, b) => payload.models[a].step - payload.models[b].step);
    if (this.film.length === 1) this.film = [];
    /** @type {number | undefined} the request whose answer Step waits for */
    this.due = undefined;
    /** @type {{id: number, use: (reply: any) => void} | undefined} the newest request for details */
    this.details = undefined;
    /** @type {number[]} bytes of an unfinished character that the model is writing */
    this.unfinished = [];
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
      shade: isShown ? "head" : "surprise",
      muted: payload.models.map(() => new Set()),
      sampling: { ...payload.sample },
      isWriting: false,
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

  /** The newest answer of a model, if it is about the present text and letter. @param {number} index */
  fresh(index) {
    const look = this.state.looks[index];
    return look && look.id === this.asked[index]?.id ? look : null;
  }

  /** The index in the film of the model that the page shows, or -1. */
  get moment() {
    return this.film.indexOf(this.state.model);
  }

  /** The heads that are switched off, as layer * n_head + head. */
  get muted() {
    return this.state.muted[this.state.model];
  }

  /** @param {Head} head @returns {number} layer * n_head + head */
  index({ layer, head }) {
    return layer * this.model.config.n_head + head;
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
      const known = (/** @type {string} */ part) => [...part].filter((letter) => !unknown.includes(letter)).join("");
      caret = known(text.slice(0, caret)).length;
      text = known(text);
      const all = [...new Set([...(this.state.message ? this.unknown : []), ...unknown])];
      const named = all.slice(0, 5).map((letter) => `“${letter}”`);
      this.say(`This model has never seen ${named.join(", ")}${all.length > 5 ? " and others" : ""}: left out.`);
      this.unknown = all;
    }
    const isTooLong = [...text].length > MAX_LETTERS;
    if (isTooLong) this.say(`The text is limited to ${MAX_LETTERS.toLocaleString("en")} letters.`);
    if (text === "") this.say("The model needs at least one letter to start from.");
    if (isTooLong || text === "" || text === this.state.text) return this.set({ isWriting: false });
    this.history.record(this.version(), group, performance.now());
    this.show(text, caret);
  }

  /** The text and the selected letter, as Undo brings them back. */
  version() {
    const { text, selected } = this.state;
    return { text, selected };
  }

  /** @param {string} text @param {number} caret */
  show(text, caret) {
    const { letters, ids } = this.vocabulary.encode(text);
    const after = letters.findIndex((letter) => letter.end >= caret);
    this.unfinished = [];
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
    this.set({ isWriting: false });
    if (!version) return this.say(nothing);
    this.show(version.text, 0);
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
    this.unfinished = [];
    this.set({ selected, isWriting: false });
    this.ask();
  }

  /** Continue after the selected letter with this token. What followed is cut; Undo brings it back.
   * @param {number} id @param {string} [group] */
  continueWith(id, group) {
    const { text, letters, selected } = this.state;
    const bytes = [...this.unfinished, id];
    this.unfinished = this.vocabulary.isByte && isUnfinished(bytes) ? bytes : [];
    if (this.unfinished.length) return this.ask();
    const kept = text.slice(0, letters[selected].end) + this.vocabulary.decode(bytes);
    if (selected < letters.length - 1) this.say("This replaced the rest of the text: Undo brings it back.");
    this.edit(kept, kept.length, group);
  }

  /** Let the model choose the next letter, as soon as it has computed this one. @param {string} [group] */
  step(group) {
    const { look } = this;
    this.due = this.asked[this.state.model]?.id;
    if (!look || look.id !== this.due) return;
    const id = choose(this.weights(look), Math.random());
    this.continueWith(id, group);
  }

  /** Start or stop writing. */
  write() {
    const isWriting = !this.state.isWriting;
    this.history.endGroup();
    this.session = `write ${this.requests}`;
    this.set({ isWriting });
    if (isWriting) this.step(this.session);
    else this.ask(); // for the effects of heads
  }

  /** The unnormalized probability of each token, after penalty, temperature and filters. @param {Look} look */
  weights(look) {
    const { sampling } = this.state;
    return weigh(penalize(look.logits, new Set(look.ids.slice(0, look.at + 1)), sampling.repetition_penalty), sampling);
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
    const { isWriting } = this.state;
    if (model === this.state.model) return;
    this.history.endGroup();
    this.set({ model, head: this.has(model, this.head) ? this.head : null, isWriting: false });
    if (this.fresh(model) && !isWriting) this.askMore();
    else this.ask();
  }

  /** Compare all moments with this one, or end that. */
  pin() {
    this.set({ other: this.state.other === null ? this.state.model : null });
  }

  /** @param {number} model @param {number | null} other */
  compare(model, other) {
    const before = this.state.model;
    if (other === model) other = before === model ? null : before;
    this.history.endGroup();
    this.set({ model, other, head: this.has(model, this.head) ? this.head : null });
    this.ask();
  }

  // --- the engine ---

  /** Ask the engine about the selected letter: first the model in view, last the start of the film. */
  ask() {
    const { model, other, isWriting } = this.state;
    for (const index of this.film) delete this.asked[index];
    for (const index of new Set([model, other ?? model, ...(isWriting ? [] : [...this.film].reverse())])) {
      this.asked[index] = this.position(index);
      this.send(this.asked[index]);
    }
    this.additions.clear();
    if (!isWriting) this.askMore();
  }

  /** Ask what each head changes, and what the model would write. The lanes need the heads at the end of the film. */
  askMore() {
    const { model, selected, letters } = this.state;
    for (const index of new Set([this.film.at(-1) ?? model, model])) {
      if (!this.fresh(index)?.effects.size) this.add("effects", index);
    }
    if (selected === letters.length - 1 && !this.fresh(model)?.written) this.add("write", model);
  }

  /** Ask for something that belongs to the newest look of a model. @param {string} kind @param {number} model */
  add(kind, model) {
    const id = this.requests++;
    this.additions.set(id, model);
    this.send({ ...this.asked[model], id, kind });
  }

  /** How many letters a model sees at most: all of them if it has a hidden state. @param {number} index of the model */
  context(index) {
    const { config } = this.payload.models[index];
    return isRecurrent(config) ? Infinity : config.context;
  }

  /** What the engine needs to know about the selected letter. @param {number} index of the model */
  position(index) {
    const { letters, ids, selected, muted } = this.state;
    const context = this.context(index);
    const length = letters[selected].last + 1;
    const from = windowStart(length + this.unfinished.length, context);
    const seen = this.unfinished.length
      ? [...ids.slice(from, length), ...this.unfinished]
      : ids.slice(from, from + context);
    const at = length + this.unfinished.length - 1 - from;
    return { id: this.requests++, model: index, ids: seen, selected: at, at, from, muted: [...muted[index]] };
  }

  /** Ask once, and give the reply, and what was asked about, to a panel that shows details. A later request cancels it.
   * @param {object} request @param {(reply: any, position: ReturnType<App["position"]>) => void} use */
  askOnce(request, use) {
    const position = this.position(this.state.model);
    this.details = { id: position.id, use: (reply) => use(reply, position) };
    this.send({ ...position, ...request });
  }

  /** Receive a reply of the engine. @param {any} reply */
  receive(reply) {
    const { details } = this;
    if (details && reply.id === details.id) {
      this.details = undefined;
      return details.use(reply);
    }
    if (reply.kind === "error") {
      if (reply.model === this.state.model) this.set({ isWriting: false });
      this.say(reply.message);
    }
    const asked = this.asked[reply.model];
    if (reply.id !== asked?.id && this.additions.get(reply.id) !== reply.model) return;
    const looks = [...this.state.looks];
    if (reply.kind === "error") {
      looks[reply.model] = null;
      delete this.asked[reply.model]; // nothing more will come
    }
    if (reply.kind === "look") looks[reply.model] = { ...asked, ...reply, effects: new Map() };
    const look = looks[reply.model];
    if (!look) return this.set({ looks });
    if (reply.kind === "effect") {
      look.effects.set(reply.layer * this.payload.models[reply.model].config.n_head + reply.head, reply.logits);
    }
    if (reply.kind === "whole") look.whole = reply.logits;
    if (reply.kind === "write") look.written = reply.ids;
    this.set({ looks });
    if (reply.kind === "look" && reply.model === this.state.model) this.follow();
  }

  /** Write the next letter. Without a pause, or with a byte that does not end a letter, at once. */
  follow() {
    if (this.state.isWriting) setTimeout(() => this.state.isWriting && this.step(this.session), PAUSE);
    else if (this.unfinished.length) this.step(this.history.group);
    else if (this.due === this.look?.id) this.step();
  }
}
