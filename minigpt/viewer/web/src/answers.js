/** Requests and answers, without a DOM. What the page needs follows from its state: a list of questions. */

/**
 * @typedef {import("./session.js").Reply} Reply
 * @typedef {{model: number, from: number, ids: number[], selected: number, muted: number[], key: string}} Position
 *   A letter, as a model sees it. from: the first token in its window; ids: the tokens from there to the end of the
 *   window; selected: the index of the token in `ids`; muted: heads, as layer * n_head + head, in order
 * @typedef {{kind: import("./session.js").Request["kind"], key: string, position: Position, layer?: number,
 *   head?: number, index?: number, use?: (reply: Reply) => void}} Question
 *   key: equal ones have equal answers; index: layer * n_head + head; use: what a question that is asked once is for
 * @typedef {Position & {logits: Float32Array, surprise: Float32Array, attention: Float32Array,
 *   effects: Map<number, Float32Array>, whole?: Float32Array, written?: number[]}} Look
 *   What a model computed for the selected letter: see `LookAnswer`. effects: logits without a head, by
 *   layer * n_head + head; whole: logits with all heads on; written: the most likely continuation
 */

export class Answers {
  /** @param {(request: import("./session.js").Request) => void} send sends a request, and gives up the last one
   * @param {(question: Question, reply: Reply) => void} onAnswer */
  constructor(send, onAnswer) {
    this.send = send;
    this.onAnswer = onAnswer;
    /** What the answers are about. */
    this.place = "";
    /** @type {Question[]} the most important one first */
    this.wanted = [];
    /** @type {Map<string, Look | null>} what was answered about the place, by key: looks, and null for the rest */
    this.known = new Map();
    /** @type {{id: number, question: Question} | undefined} the request on its way */
    this.sent = undefined;
    this.requests = 0;
  }

  /** Ask these questions about a place. What was answered about another one is forgotten.
   * @param {string} place @param {Question[]} wanted */
  want(place, wanted) {
    if (place !== this.place) {
      this.known.clear();
      this.sent = undefined;
    }
    this.place = place;
    this.wanted = wanted;
    this.next();
  }

  /** @param {{key: string} | undefined} question */
  has(question) {
    return question !== undefined && this.known.has(question.key);
  }

  /** The look at a position, if it was answered. @param {{key: string} | undefined} position */
  look(position) {
    return (position && this.known.get(position.key)) ?? null;
  }

  /** Send the most important question. It waits for the one on its way if that is wanted, too, but looks wait only for
   * looks. A question that was given up is still wanted, and has its turn later. */
  next() {
    const missing = this.wanted.filter((question) => !this.has(question)), [first] = missing, { sent } = this;
    if (sent && missing.some(({ key }) => key === sent.question.key)) {
      if (first.kind !== "look" || sent.question.kind === "look") return;
    }
    this.sent = first && { id: this.requests++, question: first };
    if (!first) return;
    const { kind, position: { model, ids, selected, muted }, layer, head } = first;
    this.send({ id: this.requests - 1, kind, model, ids, selected, muted, layer, head });
  }

  /** Keep the answer to the request on its way. Late answers to others are ignored. @param {Reply} reply */
  receive(reply) {
    if (reply.id !== this.sent?.id) return;
    const { question } = this.sent;
    this.sent = undefined;
    if (question.use) this.wanted = this.wanted.filter((other) => other !== question);
    else this.keep(question, reply);
    this.onAnswer(question, reply);
    this.next();
  }

  /** @param {Question} question @param {Reply} reply */
  keep({ key, position, index = 0 }, reply) {
    const { known } = this, look = this.look(position), whole = () => known.get(`${position.model} `)?.logits;
    known.set(key, reply.kind !== "look" ? null : {
      ...position, ...reply, effects: new Map(), get whole() { return whole(); },
    });
    if (look && reply.kind === "effect") look.effects.set(index, reply.logits);
    if (look && reply.kind === "write") look.written = reply.ids;
  }
}
