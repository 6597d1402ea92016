/** Requests and answers, without a DOM. The page wants a list of answers, which follows from its state. */

/**
 * @typedef {import("./session.js").Reply} Reply
 * A letter of the text, as a model sees it.
 * @typedef {object} Position
 * @property {number} model
 * @property {number} from the first token that the model sees
 * @property {number[]} ids the tokens from there to the end of the window
 * @property {number} selected the index of the selected token in `ids`
 * @property {number[]} muted heads, as layer * n_head + head, in order
 * @property {string} place names the tokens and the selected one
 * @property {string} key names the position: place, model and muted heads
 * An answer to ask for. Equal keys have equal answers.
 * @typedef {object} Question
 * @property {import("./session.js").Request["kind"]} kind
 * @property {string} key
 * @property {Position} position
 * @property {number} [layer]
 * @property {number} [head]
 * @property {number} [index] layer * n_head + head
 * @property {(reply: Reply) => void} [use] what a question asks once is for
 * What a model computed for the selected letter.
 * @typedef {object} Answer
 * @property {Float32Array} logits of the next token, (V)
 * @property {Float32Array} surprise the probability of each token, given those before it, (T)
 * @property {Float32Array} attention rows of the selected letter, (L, H, selected + 1)
 * @property {Map<number, Float32Array>} effects logits without a head, by layer * n_head + head
 * @property {Float32Array} [whole] logits of the next token with all heads on
 * @property {number[]} [written] the most likely continuation
 * @typedef {Position & Answer} Look
 */

/** The key of the answer to a model with all heads on. @param {{model: number, place: string}} position */
function wholeKey({ model, place }) {
  return `${model}  ${place}`;
}

export class Answers {
  /** @param {(request: import("./session.js").Request) => void} send sends a request, and gives up the last one
   * @param {(question: Question, reply: Reply) => void} onAnswer */
  constructor(send, onAnswer) {
    this.send = send;
    this.onAnswer = onAnswer;
    /** @type {Question[]} the most important one first */
    this.wanted = [];
    /** @type {Map<string, {place: string, look?: Look}>} what was answered, by key: also errors, which have no look */
    this.known = new Map();
    /** @type {{id: number, question: Question} | undefined} the request on its way */
    this.sent = undefined;
    this.requests = 0;
  }

  /** Ask for these, and forget the answers about other places. @param {Question[]} wanted */
  want(wanted) {
    this.wanted = wanted;
    const places = new Set(wanted.map(({ position }) => position.place));
    for (const [key, { place }] of this.known) if (!places.has(place)) this.known.delete(key);
    this.next();
  }

  /** @param {{key: string}} question */
  has({ key }) {
    return this.known.has(key);
  }

  /** The look at a position, if it was answered. @param {{key: string} | undefined} position */
  look(position) {
    return (position && this.known.get(position.key)?.look) ?? null;
  }

  /** Look at a position with all heads on. @param {Position} position */
  whole(position) {
    return this.look({ key: wholeKey(position) });
  }

  /** Send the most important question. It waits for the one on its way, if that is wanted, too: looks wait only for
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
    /** @type {Look | undefined} */
    let look;
    if (reply.kind === "look") {
      const { known } = this, { logits, surprise, attention } = reply, effects = new Map();
      const whole = () => known.get(wholeKey(position))?.look?.logits;
      look = { ...position, logits, surprise, attention, effects, get whole() { return whole(); } };
    }
    this.known.set(key, { place: position.place, look });
    const about = this.look(position);
    if (about && reply.kind === "effect") about.effects.set(index, reply.logits);
    if (about && reply.kind === "write") about.written = reply.ids;
  }
}
