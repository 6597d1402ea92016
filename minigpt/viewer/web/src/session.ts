/** Answers requests about the models of a page in slices of time, in a worker or beside the page's own work. */

import { argmax, probability } from "./filters.js";
import { Transformer } from "./model.js";
import { Recurrent } from "./recurrent.js";
import { isRecurrent, unpack } from "./weights.js";
import type { Model } from "./weights.js";
import type { Run } from "./model.js";

export type Request = {
  id: number;
  /** effect: the logits without one head; write: the most likely continuation */
  kind: "look" | "effect" | "write" | "logits" | "detail" | "matrix";
  model: number;
  ids: number[];
  selected: number;
  /** layer * H + head */
  muted: number[];
  layer?: number;
  head?: number;
};
export type LookAnswer = {
  kind: "look";
  /** (V) after the selected token */
  logits: Float32Array;
  /** (T): the probability that the model gave to each token, NaN for the first */
  surprise: Float32Array;
  /** (L, H, selected + 1), of the selected position */
  attention: Float32Array;
};
export type DetailAnswer = { kind: "detail" } & ReturnType<Transformer["detail"]>;
export type MatrixAnswer = { kind: "matrix" } & ReturnType<Transformer["matrix"]>;
export type Answer = LookAnswer | DetailAnswer | MatrixAnswer | { kind: "effect" | "logits", logits: Float32Array }
  | { kind: "write", ids: number[] } | { kind: "error", message: string };
export type Reply = { id: number } & Answer;
type Entry = Omit<Model, "weights"> & { weights?: Model["weights"], engine?: any, whole?: any, muted?: any };

/** Milliseconds of work before other events have their turn. */
const SLICE = 8;
/** The most tokens of a continuation. */
const WRITTEN = 32;

export class Session {
  readonly entries: Entry[];
  work: Generator<void, void, void> | undefined;
  working = false;

  constructor(models: Model[], readonly onReply: (reply: Reply) => void) {
    this.entries = models.map((model) => ({ ...model }));
  }

  /** Answer a request later. The last one is given up, if it has no answer yet. */
  send(request: Request) {
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

  /** Reply with an answer, or with the error of a request. */
  *reply(request: Request) {
    let answer: Answer;
    try {
      answer = yield* this.answer(request);
    } catch (error) {
      answer = { kind: "error", message: error instanceof Error ? error.message : String(error) };
    }
    this.onReply({ id: request.id, ...answer });
  }

  *answer(request: Request): Generator<void, Answer, void> {
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
   * one with muted heads. */
  *compute({ kind, model, ids, muted }: Request) {
    const entry = this.entries[model], slot = muted.length ? "muted" : "whole", previous = entry[slot] ?? entry.whole;
    const { config, weights = {} } = entry;
    entry.engine ??= new (isRecurrent(config) ? Recurrent : Transformer)(config, unpack({ config, weights }));
    delete entry.weights; // the engine has its own
    const run: Run = yield* entry.engine.run(ids, { muted, previous });
    if (kind !== "logits") entry[slot] = run; // to check the arithmetic, a model runs on another text
    return { engine: entry.engine, run };
  }
}

/** Continue a text with the most likely tokens, as long as they fit into the context. */
function* continued(engine: Transformer | Recurrent, run: any, muted: number[]): Generator<void, number[], void> {
  const ids: number[] = [];
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
