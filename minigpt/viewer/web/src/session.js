/** Answers requests about the models of a page in slices of time, in a worker or beside the page's own work. */

import { argmax, probability } from "./filters.js";
import { Transformer } from "./model.js";
import { Recurrent } from "./recurrent.js";
import { isRecurrent, unpack } from "./weights.js";

/**
 * @typedef {{id: number, kind: "look" | "effect" | "write" | "logits" | "detail" | "matrix", model: number,
 *   ids: number[], selected: number, muted: number[], layer?: number, head?: number}} Request
 *   muted: layer * H + head; effect: the logits without one head; write: the most likely continuation
 * @typedef {{kind: "look", logits: Float32Array, surprise: Float32Array, attention: Float32Array}} LookAnswer
 *   logits (V) after the selected token; the probability (T) that the model gave to each token, NaN for the first; the
 *   attention (L, H, selected + 1) of the selected position
 * @typedef {{kind: "detail"} & ReturnType<Transformer["detail"]>} DetailAnswer
 * @typedef {{kind: "matrix"} & ReturnType<Transformer["matrix"]>} MatrixAnswer
 * @typedef {LookAnswer | DetailAnswer | MatrixAnswer | {kind: "effect" | "logits", logits: Float32Array}
 *   | {kind: "write", ids: number[]} | {kind: "error", message: string}} Answer
 * @typedef {{id: number} & Answer} Reply
 * @typedef {{config: import("./weights.js").Config, weights?: Record<string, import("./weights.js").Packed>,
 *   engine?: Transformer | Recurrent, whole?: any, muted?: any}} Entry
 */

/** Milliseconds of work before other events have their turn. */
const SLICE = 8;
/** The most tokens of a continuation. */
const WRITTEN = 32;

export class Session {
  /** @param {import("./weights.js").Model[]} models @param {(reply: Reply) => void} onReply */
  constructor(models, onReply) {
    this.entries = models.map((model) => /** @type {Entry} */ ({ ...model }));
    this.onReply = onReply;
    this.work = /** @type {Generator<void, void, void> | undefined} */ (undefined);
    this.working = false;
  }

  /** Answer a request later. The last one is given up, if it has no answer yet. @param {Request} request */
  send(request) {
    this.work = this.reply(request);
    if (!this.working) void this.drive();
  }

  /** Work until nothing is left. */
  async drive() {
    this.working = true;
    while (this.work) {
      await nextTurn();
      const end = performance.now() + SLICE;
      while (this.work && performance.now() < end) {
        const { work } = this;
        if (work.next().done && this.work === work) this.work = undefined;
      }
    }
    this.working = false;
  }

  /** Reply with an answer, or with the error of a request. @param {Request} request */
  *reply(request) {
    /** @type {Answer} */
    let answer;
    try {
      answer = yield* this.answer(request);
    } catch (error) {
      answer = { kind: "error", message: error instanceof Error ? error.message : String(error) };
    }
    this.onReply({ id: request.id, ...answer });
  }

  /** @param {Request} request @returns {Generator<void, Answer, void>} */
  *answer(request) {
    const { kind, ids, selected, muted, layer = 0, head = 0 } = request, { engine, run } = yield* this.compute(request);
    const logits = run.logits(selected).slice();
    if (kind === "logits") return { kind, logits };
    if (kind === "write") return { kind, ids: yield* continued(engine, run, muted) };
    if (kind === "look") {
      const surprise = Float32Array.from(ids, (token, t) => (t ? probability(run.logits(t - 1), token) : NaN));
      const attention = engine instanceof Transformer ? engine.attention(run, selected) : new Float32Array();
      return { kind, logits, surprise, attention };
    }
    if (!(engine instanceof Transformer)) throw new Error("this model has no heads");
    if (kind === "detail") return { kind, ...engine.detail(run, layer, head, selected) };
    if (kind === "matrix") return { kind, ...engine.matrix(run, layer, head) };
    return { kind, logits: (yield* engine.without(run, layer, head, selected)).slice() };
  }

  /** Run the model on the text of a request. The run stays, for the next request to reuse: one with all heads on, and
   * one with muted heads. @param {Request} request */
  *compute({ kind, model, ids, muted }) {
    const entry = this.entries[model], slot = muted.length ? "muted" : "whole", previous = entry[slot] ?? entry.whole;
    const { config } = entry;
    entry.engine ??= new (isRecurrent(config) ? Recurrent : Transformer)(config, unpack(/** @type {any} */ (entry)));
    delete entry.weights; // the engine has its own
    const run = /** @type {import("./model.js").Run} */ (yield* entry.engine.run(ids, { muted, previous }));
    if (kind !== "logits") entry[slot] = run; // to check the arithmetic, a model runs on another text
    return { engine: entry.engine, run };
  }
}

/** Continue a text with the most likely tokens, as long as they fit into the context.
 * @param {Transformer | Recurrent} engine @param {any} run @param {number[]} muted
 * @returns {Generator<void, number[], void>} */
function* continued(engine, run, muted) {
  const ids = /** @type {number[]} */ ([]);
  const room = engine instanceof Recurrent ? WRITTEN : engine.config.context - run.ids.length;
  while (ids.length < Math.min(WRITTEN, room)) {
    ids.push(argmax(run.logits(run.ids.length - 1)));
    run = yield* engine.run([...run.ids, ids[ids.length - 1]], { muted, previous: run });
  }
  return ids;
}

/** Let other events have their turn. A timer would wait for 4 ms each time. */
function nextTurn() {
  return new Promise((resolve) => {
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = () => {
      port1.close();
      resolve(undefined);
    };
    port2.postMessage(null);
  });
}
