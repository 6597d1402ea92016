/** Answers requests about the models of a page in slices of time, in a worker or beside the page's own work. */

import { probability } from "./filters.js";
import { Transformer } from "./model.js";
import { Recurrent } from "./recurrent.js";
import { isRecurrent, unpack } from "./weights.js";

/**
 * @typedef {{id: number, kind?: "look", model: number, ids: number[], selected: number, muted: number[],
 *   effects: boolean}} LookRequest   muted: layer * H + head
 * @typedef {{id: number, kind: "detail" | "matrix", model: number, ids: number[], selected: number, muted: number[],
 *   layer: number, head: number}} HeadRequest
 * @typedef {{id: number, kind: "logits", model: number, ids: number[], selected: number, muted: number[]}}
 *   LogitsRequest   for the logits alone; a look does not cancel it
 * @typedef {LookRequest | HeadRequest | LogitsRequest} Request
 * @typedef {{id: number, kind: "look", model: number, logits: Float32Array, surprise: Float32Array,
 *   attention: Float32Array}} LookReply   logits (V) after the selected token; the probability (T) that the model gave
 *   to each token, NaN for the first; the attention (L, H, selected + 1) of the selected position
 * @typedef {{id: number, kind: "whole", model: number, logits: Float32Array}} WholeReply   if no head were muted
 * @typedef {{id: number, kind: "effect", model: number, layer: number, head: number, logits: Float32Array}} EffectReply
 * @typedef {{id: number, kind: "logits", logits: Float32Array}} LogitsReply
 * @typedef {{id: number, kind: "detail"} & ReturnType<Transformer["detail"]>} DetailReply
 * @typedef {{id: number, kind: "matrix"} & ReturnType<Transformer["matrix"]>} MatrixReply
 * @typedef {{id: number, model: number} & ({kind: "done"} | {kind: "error", message: string})} EndReply
 * @typedef {LookReply | WholeReply | EffectReply | LogitsReply | DetailReply | MatrixReply | EndReply} Reply
 * @typedef {Generator<void, void, void>} Work
 * @typedef {{model: import("./weights.js").Model, engine?: Transformer | Recurrent, run?: any}} Entry
 */

/** Milliseconds of work before other events have their turn. */
const SLICE = 8;

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
    this.effects = /** @type {Work | undefined} */ (undefined);
    this.inspections = /** @type {Work[]} */ ([]);
    this.working = false;
  }

  /** Answer a request later. A new look cancels the last one of its model, and all effects. @param {Request} request */
  send(request) {
    if (isLook(request)) {
      this.looks.set(request.model, this.guarded(request, this.lookAt(request)));
      this.effects = undefined;
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
        for (const [model, look] of this.looks) if (look === work) this.looks.delete(model);
        if (work === this.inspections[0]) this.inspections.shift();
        if (work === this.effects) this.effects = undefined; // unless a listener has sent a new look
      }
    } while (work);
    this.working = false;
  }

  /** The most urgent work. @returns {Work | undefined} */
  next() {
    const [look] = this.looks.values();
    return look ?? this.inspections[0] ?? this.effects;
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
    if (request.effects && hasHeads) this.effects = this.guarded(request, this.effectsOf(request, engine, run));
    else this.reply({ id, kind: "done", model });
  }

  /** Compute what each head changes. The last layer comes first: muting a head changes nothing below it.
   * @param {LookRequest} request @param {Transformer} engine @param {import("./model.js").Run} run @returns {Work} */
  *effectsOf({ id, model, selected }, engine, run) {
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

  /** @param {HeadRequest | LogitsRequest} request @returns {Work} */
  *inspect(request) {
    const { id, selected } = request, { engine, run } = yield* this.compute(request);
    if (request.kind === "logits") return this.reply({ id, kind: "logits", logits: run.logits(selected).slice() });
    const { kind, layer, head } = request;
    if (!(engine instanceof Transformer)) throw new Error("this model has no heads");
    if (kind === "detail") this.reply({ id, kind, ...engine.detail(run, layer, head, selected) });
    else this.reply({ id, kind, ...engine.matrix(run, layer, head) });
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
