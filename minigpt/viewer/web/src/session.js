/** Answers requests about the models of a page in slices of time, in a worker or beside the page's own work. */

import { argmax, probability } from "./filters.js";
import { Transformer } from "./model.js";
import { Recurrent } from "./recurrent.js";
import { isRecurrent, unpack } from "./weights.js";

/**
 * @typedef {{id: number, kind?: "look" | "film", model: number, ids: number[], selected: number, muted: number[]}}
 *   LookRequest   muted: layer * H + head; film: the look of another moment, which can wait
 * @typedef {{id: number, kind: "effects", model: number, ids: number[], selected: number, muted: number[]}}
 *   EffectsRequest   what each head changes; any new look cancels it
 * @typedef {{id: number, kind: "detail" | "matrix", model: number, ids: number[], selected: number, muted: number[],
 *   layer: number, head: number}} HeadRequest
 * @typedef {{id: number, kind: "logits" | "write", model: number, ids: number[], selected: number, muted: number[]}}
 *   PlainRequest   for the logits alone, which a look does not cancel, or for the most likely continuation
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
/** Which request comes first: details often need the same run as the look. */
const ORDER = ["look", "logits", "detail", "matrix", "write", "effects", "film"];
/** The most tokens of a continuation. */
const WRITTEN = 32;

/** Whether a new request makes another one that came before it needless. @param {Request} request
 * @param {Request} before */
export function cancels(request, before) {
  if ((request.kind ?? "look") !== "look") return false;
  const isOld = before.model === request.model && (before.kind ?? "look") === "look";
  return isOld || ["effects", "film", "write"].includes(before.kind ?? "look");
}

export class Session {
  /** @param {import("./weights.js").Model[]} models @param {(reply: Reply) => void} onReply */
  constructor(models, onReply) {
    this.entries = models.map((model) => /** @type {Entry} */ ({ model }));
    this.reply = onReply;
    this.queue = /** @type {{request: Request, work: Work}[]} */ ([]);
    this.working = false;
  }

  /** Answer a request later. A new look cancels the last one of its model, all effects, and the rest of the film.
   * @param {Request} request */
  send(request) {
    this.queue = this.queue.filter((entry) => !cancels(request, entry.request));
    this.queue.push({ request, work: this.guarded(request, this.answer(request)) });
    if (!this.working) void this.drive();
  }

  /** Work until nothing is left, the most urgent first. */
  async drive() {
    this.working = true;
    let entry = this.next();
    do {
      await nextTurn();
      const end = performance.now() + SLICE;
      while ((entry = this.next()) && performance.now() < end) {
        if (entry.work.next().done) this.queue = this.queue.filter((other) => other !== entry);
      }
    } while (entry);
    this.working = false;
  }

  /** The most urgent request; of equals the first, but the last of those for effects. */
  next() {
    const rank = (/** @type {Request} */ { kind = "look" }) => ORDER.indexOf(kind);
    const best = Math.min(...this.queue.map(({ request }) => rank(request)));
    const equals = this.queue.filter(({ request }) => rank(request) === best);
    return ORDER[best] === "effects" ? equals.at(-1) : equals[0];
  }

  /** @param {Request} request @returns {Work} */
  answer(request) {
    if (request.kind === "effects") return this.effectsOf(request);
    if (request.kind === undefined || request.kind === "look" || request.kind === "film") return this.lookAt(request);
    return this.inspect(/** @type {HeadRequest | PlainRequest} */ (request));
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
