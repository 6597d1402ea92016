/** Answers requests about the models of a page in slices of time, in a worker or beside the page's own work. */

import { argmax, probability } from "./filters.js";
import { attentionAt, Transformer } from "./model.js";
import { Recurrent } from "./recurrent.js";
import { isRecurrent, unpack } from "./weights.js";
import type { Run } from "./model.js";
import type { Model } from "./weights.js";

export type Request = {
  id: number;
  /** moment: a look at a moment of the film that is not shown; effect: without one head; write: the most likely
   * continuation after the selected token */
  kind: "look" | "moment" | "effect" | "write" | "logits" | "detail" | "matrix";
  model: number;
  ids: number[];
  selected: number;
  muted: number[]; // layer * H + head
  layer?: number;
  head?: number;
};
export type LookAnswer = {
  kind: "look";
  logits: Float32Array; // (V) after the selected token
  surprise: Float32Array; // (T): the probability that the model gave to each token, NaN for the first
  attention: Float32Array; // (L, H, selected + 1), of the selected position
};
export type EffectAnswer = Pick<LookAnswer, "logits" | "attention">;
export type DetailAnswer = ReturnType<Transformer["detail"]>;
export type Answer = LookAnswer | { kind: "effect" } & EffectAnswer | { kind: "logits", logits: Float32Array }
  | { kind: "detail" } & DetailAnswer | { kind: "matrix", weights: Float32Array }
  | { kind: "write", ids: number[] } | { kind: "error", message: string };
export type Reply = { id: number } & Answer;
type Engine = Transformer | Recurrent;

/** Milliseconds of work before other events have their turn. */
const SLICE = 8;
/** The most tokens of a continuation. */
const WRITTEN = 32;
/** The most models with numbers in memory, and the most runs that the next ones go on from. */
const ENGINES = 2, RUNS = 3;

export class Session {
  work: Generator<void, void, void> | undefined;
  working = false;
  engines = new Map<number, Engine>();
  runs = new Map<string, Run>();
  /** What looks need of the last run of each moment. */
  moments = new Map<number, { key: string, run: Run }>();

  constructor(readonly models: Model[], readonly onReply: (reply: Reply) => void) {}

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
    const { kind, model, ids, selected, muted, layer = 0, head = 0 } = request, H = this.models[model].config.n_head;
    const run = yield* this.run(request), logits = run.logits(selected).slice();
    if (kind === "logits") return { kind, logits };
    if (kind === "look" || kind === "moment") {
      const surprise = Float32Array.from(ids, (token, t) => (t ? probability(run.logits(t - 1), token) : NaN));
      return { kind: "look", logits, surprise, attention: attentionAt(run, H, selected) };
    }
    const engine = this.engine(model);
    if (kind === "write") return { kind, ids: yield* continued(engine, run, selected, muted) };
    if (!(engine instanceof Transformer)) throw new Error("this model has no heads");
    if (kind === "detail") return { kind, ...engine.detail(run, layer, head, selected) };
    if (kind === "matrix") return { kind, weights: engine.matrix(run, layer, head) };
    const other = yield* engine.without(run, layer, head, selected);
    return { kind, logits: other.logits(selected).slice(), attention: attentionAt(other, H, selected) };
  }

  /** The run of a model on the text of a request. It begins where a run in memory ends that began in the same way. */
  *run({ kind, model, ids, muted }: Request): Generator<void, Run, void> {
    const key = `${model} ${muted}`, isLook = kind === "look" || kind === "moment";
    const moment = this.moments.get(model), brief = isLook && moment?.key === key ? moment.run : undefined;
    const known = [this.runs.get(key), brief].find((run) => String(run?.ids) === String(ids));
    if (known) return known;
    const previous = this.runs.get(key) ?? this.runs.get(`${model} `);
    const run: Run = yield* (this.engine(model) as any).run(ids, { muted, previous });
    if (kind === "moment") this.moments.set(model, { key, run: { ...run, x: [], q: [], k: [], v: [], outputs: [] } });
    else if (kind !== "logits") keep(this.runs, key, run, RUNS); // the arithmetic is checked with another text
    return run;
  }

  engine(model: number): Engine {
    const { config } = this.models[model];
    const Family = isRecurrent(config) ? Recurrent : Transformer;
    const engine = this.engines.get(model) ?? new Family(config, unpack(this.models[model]));
    keep(this.engines, model, engine, ENGINES);
    return engine;
  }
}

/** Keep the newest entries. */
function keep<K, V>(map: Map<K, V>, key: K, value: V, most: number) {
  map.delete(key);
  map.set(key, value);
  for (const oldest of map.keys()) if (map.size > most) map.delete(oldest);
}

/** Continue a text after a position with the most likely tokens, as long as they fit into the context. */
function* continued(engine: any, run: Run, position: number, muted: number[]): Generator<void, number[], void> {
  const ids: number[] = [], start = run.ids.slice(0, position + 1);
  const room = engine instanceof Recurrent ? WRITTEN : engine.config.context - start.length;
  for (let at = position; ids.length < Math.min(WRITTEN, room); at++) {
    ids.push(argmax(run.logits(at)));
    run = yield* engine.run([...start, ...ids], { muted, previous: run });
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
