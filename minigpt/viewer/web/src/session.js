/** Answers requests about the models of a page in slices of time, in a worker or beside the page's own work. */

import { argmax, probability } from "./filters.js";
import { Transformer } from "./model.js";
import { Recurrent } from "./recurrent.js";
import { isRecurrent, unpack } from "./weights.js";

/**
 * @typedef {{id: number, kind?: "look", model: number, ids: number[], selected: number, muted: number[]}} LookRequest
 *   muted: layer * H + head
 * @typedef {{id: number, kind: "effects", model: number, ids: number[], selected: number, muted: number[]}}
 *   EffectsRequest   what each head changes; any new look cancels it
 * @typedef {{id: number, kind: "detail" | "matrix", model: number, ids: number[], selected: number, muted: number[],
 *   layer: number, head: number}} HeadRequest
 * @typedef {{id: number, kind: "logits" | "write", model: number, ids: number[], selected: number, muted: number[]}}
 *   PlainRequest   for the logits alone, or the most likely continuation; a look does not cancel it
 * @typedef {LookRequest | EffectsRequest | HeadRequest | PlainRequest} Request
 * @typedef {{id: number, kind: "look", model: number, logits: Float32Array, surprise: Float32Array,
 *   attention: Float32Array}} LookReply   logits (V) after the selected token; the probability (T) that the model gave
 *   to each token, NaN for the first; the attention (L, H, selected + 1) of the selected position
 * @typedef {{id: number, kind: "whole", model: number, logits: Float32Array}} WholeReply   if no head were muted
 * @typedef {{id: number, kind: "effect", model: number, layer: number, head: number, logits: Float32Array}} EffectReply
 * @typedef {{id: number, kind: "logits", logits: Float32Array} | {id: number, kind: "write", model: number,
 *   ids: number[]}} PlainReply
 * @typedef {{id: number, kind: "detail"} & ReturnType<Transformer["detail"]>} DetailReply
 * @typedef {{id: number, kind: "matrix"} & ReturnType<Transformer["matrix"]>} MatrixReply
 * @typedef {{id: number, model: number} & ({kind: "done"} | {kind: "error", message: string})} EndReply
 * @typedef {LookReply | WholeReply | EffectReply | PlainReply | DetailReply | MatrixReply | EndReply} Reply
 * @typedef {Generator<void, void, void>} Work
 * @typedef {{model: import("./weights.js").Model, engine?: Transformer | Recurrent, run?: any}} Entry
 */

/** Milliseconds of work before other events have their turn. */
const SLICE = 8;
/** The most tokens of a continuation. */
const WRITTEN = 32;

/** @param {Request} request @returns {request is LookRequest} */
export function isLook(request) {
  return (request.kind ?? "look") === "look";
}

export class Session {
  /** @param {import("./weights.js").Model[]} models @param {(reply: Reply) => void} onReply */
  constructor(models, onReply) {
    this.entries = models.map((model) => /** @type {Entry} */ ({ model }));
    this.reply = onReply;
    /** The newest look of each model. */
    this.looks = /** @type {Map<number, Work>} */ (new Map());
    /** The newest effects of each model, the most urgent last. */
    this.effects = /** @type {Map<number, Work>} */ (new Map());
    this.inspections = /** @type {Work[]} */ ([]);
    this.working = false;
  }

  /** Answer a request later. A new look cancels the last one of its model, and all effects. @param {Request} request */
  send(request) {
    if (isLook(request)) {
      this.looks.delete(request.model); // the order of requests is the order of answers
      this.looks.set(request.model, this.guarded(request, this.lookAt(request)));
      this.effects.clear();
    } else if (request.kind === "effects") {
      this.effects.delete(request.model);
      this.effects.set(request.model, this.guarded(request, this.effectsOf(request)));
    } else {
      this.inspections.push(this.guarded(request, this.inspect(request)));
    }
    if (!this.working) void this.drive();
  }

  /** Work until nothing is left: first the look, then details, which often need the same run, then effects. */
  async drive() {
    this.working = true;
    let work;
    do {
      await nextTurn();
      const end = performance.now() + SLICE;
      while ((work = this.next()) && performance.now() < end) {
        if (!work.next().done) continue;
        for (const works of [this.looks, this.effects]) {
          for (const [model, its] of works) if (its === work) works.delete(model); // a listener may have sent a new one
        }
        if (work === this.inspections[0]) this.inspections.shift();
      }
    } while (work);
    this.working = false;
  }

  /** The most urgent work. @returns {Work | undefined} */
  next() {
    const [look] = this.looks.values();
    return look ?? this.inspections[0] ?? [...this.effects.values()].at(-1);
  }

  /** Turn the error of a request into a reply. @param {Request} request @param {Work} work @returns {Work} */
  *guarded(request, work) {
    try {
      yield* work;
    } catch (error) {
      const message = error instanceof Error ? error.message : String(error);
      this.reply({ id: request.id, kind: "error", model: request.model, message });
    }
  }

  /** Run the model on the text of a request. The run stays, for the next request to reuse. @param {Request} request */
  *compute({ model, ids, muted }) {
    const entry = this.entries[model];
    const weights = entry.engine ? {} : unpack(entry.model), { config } = entry.model;
    const engine = (entry.engine ??= new (isRecurrent(config) ? Recurrent : Transformer)(config, weights));
    entry.run = yield* engine.run(ids, { muted, previous: entry.run });
    return { engine, run: /** @type {import("./model.js").Run} */ (entry.run) };
  }

  /** @param {LookRequest} request @returns {Work} */
  *lookAt(request) {
    const { id, model, ids, selected } = request, { engine, run } = yield* this.compute(request);
    const surprise = Float32Array.from(ids, (token, t) => (t ? probability(run.logits(t - 1), token) : NaN));
    const hasHeads = engine instanceof Transformer, logits = run.logits(selected).slice();
    const attention = hasHeads ? engine.attention(run, selected) : new Float32Array();
    this.reply({ id, kind: "look", model, logits, surprise, attention });
  }

  /** Compute what each head changes. The last layer comes first: muting a head changes nothing below it.
   * @param {EffectsRequest} request @returns {Work} */
  *effectsOf(request) {
    const { id, model, selected } = request, { engine, run } = yield* this.compute(request);
    if (!(engine instanceof Transformer)) return this.reply({ id, kind: "done", model });
    const { n_layer: L, n_head: H } = engine.config, ids = run.ids.slice(0, selected + 1);
    const whole = run.muted.size ? yield* engine.run(ids, { previous: run, lastOnly: true }) : run;
    this.reply({ id, kind: "whole", model, logits: whole.logits(selected).slice() });
    for (let layer = L - 1; layer >= 0; layer--) {
      for (let head = 0; head < H; head++) {
        if (run.muted.has(layer * H + head)) continue;
        const logits = yield* engine.without(run, layer, head, selected);
        this.reply({ id, kind: "effect", model, layer, head, logits: logits.slice() });
      }
    }
    this.reply({ id, kind: "done", model });
  }

  /** @param {HeadRequest | PlainRequest} request @returns {Work} */
  *inspect(request) {
    const { id, selected } = request, { engine, run } = yield* this.compute(request);
    if (!("head" in request)) {
      if (request.kind === "write") return this.reply(yield* this.continued(request, engine, run));
      return this.reply({ id, kind: "logits", logits: run.logits(selected).slice() });
    }
    const { kind, layer, head } = request;
    if (!(engine instanceof Transformer)) throw new Error("this model has no heads");
    if (kind === "detail") this.reply({ id, kind, ...engine.detail(run, layer, head, selected) });
    else this.reply({ id, kind, ...engine.matrix(run, layer, head) });
  }

  /** Continue a text with the most likely tokens, as long as they fit into the context.
   * @param {PlainRequest} request @param {Transformer | Recurrent} engine @param {any} run
   * @returns {Generator<void, PlainReply, void>} */
  *continued({ id, model, muted }, engine, run) {
    const ids = /** @type {number[]} */ ([]), hasState = engine instanceof Recurrent;
    const room = hasState ? WRITTEN : engine.config.context - run.ids.length;
    while (ids.length < Math.min(WRITTEN, room)) {
      ids.push(argmax(run.logits(run.ids.length - 1)));
      run = yield* engine.run([...run.ids, ids[ids.length - 1]], { muted, previous: run });
    }
    return { id, kind: "write", model, ids };
  }
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
