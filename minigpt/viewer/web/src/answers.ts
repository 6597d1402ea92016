/** Requests and answers, without a DOM. What the page needs follows from its state: a list of questions. */

import type { EffectAnswer, LookAnswer, Reply, Request } from "./session.js";

/** A letter, as a model sees it. */
export type Position = {
  model: number;
  from: number; // the first token in the window of the model
  ids: number[]; // the tokens from there to the end of the window
  selected: number; // the index of the token in `ids`
  muted: number[]; // heads that are switched off, as layer * n_head + head, in order
  key: string;
};
/** Equal keys have equal answers. */
export type Question = {
  kind: Request["kind"]; key: string; position: Position; layer?: number; head?: number;
  index?: number; // layer * n_head + head
  /** what a question that is asked once is for */
  use?: (reply: Reply) => void;
};
/** What a model computed for the selected letter. */
export type Look = Position & Omit<LookAnswer, "kind"> & {
  effects: Map<number, EffectAnswer>; // what changes without a head, by layer * n_head + head
  whole?: Float32Array; // logits with all heads on
  written?: number[]; // the most likely continuation
};

export class Answers {
  place = ""; // what the answers are about
  wanted: Question[] = []; // the most important one first
  /** What was answered about the place, by key: looks, and null for the rest. */
  known = new Map<string, Look | null>();
  sent: { id: number, question: Question } | undefined; // the request on its way
  requests = 0;

  /** @param send sends a request, and gives up the last one */
  constructor(
    readonly send: (request: Request) => void, readonly onAnswer: (question: Question, reply: Reply) => void,
  ) {}

  /** Ask these questions about a place. What was answered about another one is forgotten. */
  want(place: string, wanted: Question[]) {
    if (place !== this.place) {
      this.known.clear();
      this.sent = undefined;
    }
    this.place = place;
    this.wanted = wanted;
    this.next();
  }

  has(question: { key: string } | undefined) {
    return question !== undefined && this.known.has(question.key);
  }

  /** The look at a position, if it was answered. */
  look(position: { key: string } | undefined) {
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

  /** Keep the answer to the request on its way. Late answers to others are ignored. */
  receive(reply: Reply) {
    if (reply.id !== this.sent?.id) return;
    const { question } = this.sent;
    this.sent = undefined;
    if (question.use) this.wanted = this.wanted.filter((other) => other !== question);
    else this.keep(question, reply);
    this.onAnswer(question, reply);
    this.next();
  }

  keep({ key, position, index = 0 }: Question, reply: Reply) {
    const { known } = this, look = this.look(position), whole = () => known.get(`${position.model} `)?.logits;
    known.set(key, reply.kind !== "look" ? null : {
      ...position, ...reply, effects: new Map(), get whole() { return whole(); },
    });
    if (look && reply.kind === "effect") {
      look.effects.set(index, { logits: reply.logits, attention: reply.attention });
    }
    if (look && reply.kind === "write") look.written = reply.ids;
  }
}
