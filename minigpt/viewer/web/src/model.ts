/**
 * The transformer, for every switch of model/gpt.py. It keeps the keys, values and attention of a run, so that the next
 * run computes only what differs.
 *
 * Letters in shapes: T tokens, S = t + 1 tokens up to position t, C width, H heads, D = C / H, L layers, V vocabulary.
 */

import { argmax } from "./filters.js";
import { CHUNK, commonPrefix, dot, extend, multiply } from "./linear.js";
import type { Floats } from "./linear.js";
import type { Config, Weights } from "./weights.js";

type Options = {
  muted?: Iterable<number>;
  previous?: Run | null; // a run to reuse
  lastOnly?: boolean; // compute only the last position's logits; do not reuse such a run
};

/** What the model computed for a text. Nobody changes it afterwards. */
export type Run = {
  ids: number[]; // (T)
  muted: Set<number>; // heads, as layer * H + head
  x: Float32Array[]; // (L + 1) times (T, C): the residual stream before each layer, and after the last
  q: Float32Array[]; // (L) times (T, C): queries after QK-norm and RoPE, unscaled; head after head
  k: Float32Array[]; // (L) times (T, C): keys, likewise
  v: Float32Array[]; // (L) times (T, C): values
  weights: Float32Array[]; // (L) times the attention of position 0, 1, ...: (H, S) each; see `rowStart`
  outputs: Float32Array[]; // (L) times (T, C): the outputs of all heads, also of muted ones
  allLogits: Float32Array; // (T, V)
  /** logits (V) of the token after `position` */
  logits: (position: number) => Float32Array;
};

const EPSILON: Record<string, number> = { layernorm: 1e-5, rmsnorm: 1e-6 };
const POSITION_BASE = 10_000;

export class Transformer {
  readonly vocabulary: number;
  readonly rotations: Float32Array | null; // (context, D): sines and cosines in turn

  /** @param weights named as in the model's `state_dict()` */
  constructor(readonly config: Config, readonly weights: Weights) {
    this.vocabulary = weights["token_embedding.weight"].length / config.n_embd;
    this.rotations = config.position === "rotary" ? waves(config.context, config.n_embd / config.n_head) : null;
  }

  /** Compute a text of at most `context` tokens. The generator yields every few milliseconds. It reuses what it can
   * of `previous`: positions up to the first other token, in layers up to the first one whose muted heads differ. In
   * this layer, queries, keys, values and attention are still the same.
   * @param ids (T) */
  *run(ids: number[], { muted = [], previous = null, lastOnly = false }: Options = {}): Generator<void, Run, void> {
    const { n_layer: L, n_head: H, n_embd: C } = this.config, T = ids.length;
    const run = newRun(ids, new Set(muted), this.vocabulary);
    const prefix = previous ? commonPrefix(ids, previous.ids) : 0;
    const changed = previous ? firstDifference(run.muted, previous.muted, H, L) : 0;
    run.x.push(extend(previous?.x[0], prefix, T * C, C));
    for (let t = prefix; t < T; t++) run.x[0].set(this.input(ids[t], t), t * C);
    for (let layer = 0; layer < L; layer++) {
      const attended = layer <= changed ? prefix : 0;
      const mixed = layer < changed ? prefix : 0;
      const first = lastOnly && layer === L - 1 ? T - 1 : 0;
      yield* this.runLayer(run, layer, previous, attended, mixed, first);
    }
    yield* this.readLogits(run, previous, changed >= L ? prefix : 0, lastOnly);
    return run;
  }

  /** Compute a layer, except for what is known from `previous`.
   * @param attended the number of positions whose queries, keys, values and attention are known
   * @param mixed the number of positions whose output is known too
   * @param first the first position whose output is needed */
  *runLayer(
    run: Run, layer: number, previous: Run | null, attended: number, mixed: number, first: number,
  ): Generator<void, void, void> {
    const { n_head: H, n_embd: C } = this.config, T = run.ids.length;
    for (const name of (["q", "k", "v", "outputs"] as const)) {
      run[name].push(extend(previous?.[name][layer], attended, T * C, C));
    }
    run.weights.push(extend(previous?.weights[layer], rowStart(H, attended), rowStart(H, T)));
    run.x.push(extend(previous?.x[layer + 1], mixed, T * C, C));
    for (let from = attended; from < first; from += CHUNK) { // later positions need only their keys and values
      this.project(run, layer, from, Math.min(from + CHUNK, first), true);
      yield;
    }
    for (let from = Math.max(first, mixed), to = 0; from < T; from = to) {
      const isKnown = from < attended;
      to = Math.min(from + CHUNK, isKnown ? attended : T);
      if (!isKnown) {
        this.project(run, layer, from, to, false);
        this.attend(run, layer, from, to);
      }
      this.mix(run, layer, from, to);
      yield;
    }
  }

  /** Compute the logits of the last layer's output, except for the first `known` positions. */
  *readLogits(run: Run, previous: Run | null, known: number, lastOnly: boolean): Generator<void, void, void> {
    const { n_layer: L, n_embd: C } = this.config, T = run.ids.length, V = this.vocabulary;
    run.allLogits = extend(previous?.allLogits, known, T * V, V);
    for (let from = lastOnly ? Math.max(known, T - 1) : known; from < T; from += CHUNK) {
      const to = Math.min(from + CHUNK, T), normed = this.norm(run.x[L].subarray(from * C, to * C), "norm");
      run.allLogits.set(this.linear("token_embedding", normed, to - from), from * V);
      yield;
    }
  }

  /** Compute the run up to `position` with one more head muted. Of the last layer, only `position` is computed. */
  *without(run: Run, layer: number, head: number, position: number): Generator<void, Run, void> {
    const muted = [...run.muted, layer * this.config.n_head + head];
    return yield* this.run(run.ids.slice(0, position + 1), { muted, previous: run, lastOnly: true });
  }

  /** Return what the first layer reads of one token (C): its vector, plus that of its position. */
  input(id: number, t: number) {
    const { n_embd: C, position: kind } = this.config;
    const x = this.weights["token_embedding.weight"].slice(id * C, (id + 1) * C);
    const learned = kind === "learned" ? this.weights["position_embedding.weight"].subarray(t * C, (t + 1) * C) : null;
    if (kind !== "sinusoidal") return learned ? x.map((value, i) => value + learned[i]) : x;
    const wave = waves(t + 1, C, t); // scaled as in Vaswani et al. 2017, section 3.4
    return x.map((value, i) => value * Math.sqrt(C) + wave[i]);
  }

  /** Normalize rows (rows, C), with the gain and bias of a norm. */
  norm(x: Floats, name: string) {
    return normalize(x, this.config.norm, this.weights[`${name}.weight`], this.weights[`${name}.bias`]);
  }

  /** Apply a linear layer to rows (rows, inputs), without its first `skip` outputs. */
  linear(name: string, x: Floats, rows: number, skip: number = 0) {
    const weight = this.weights[`${name}.weight`].subarray((skip * x.length) / rows);
    const y = new Float64Array((weight.length * rows * rows) / x.length); // (rows, outputs)
    multiply(weight, this.weights[`${name}.bias`]?.subarray(skip), x, rows, y);
    return y;
  }

  /** Compute the queries, keys and values of the positions from `from` to before `to`.
   * @param keysOnly leave out the queries */
  project(run: Run, layer: number, from: number, to: number, keysOnly: boolean) {
    const { n_head: H, n_embd: C } = this.config, D = C / H, block = `blocks.${layer}`, rows = to - from;
    const normed = this.norm(run.x[layer].subarray(from * C, to * C), `${block}.norm1`);
    const joined = this.linear(`${block}.attention.qkv`, normed, rows, keysOnly ? C : 0); // (rows, 3, H, D)
    const parts = keysOnly ? [run.k[layer], run.v[layer]] : [run.q[layer], run.k[layer], run.v[layer]];
    const gain = this.weights[`${block}.attention.qk_norm.weight`];
    for (let row = 0; row < rows; row++) {
      parts.forEach((part, index) => {
        const start = (row * parts.length + index) * C, t = from + row;
        for (let h = 0; h < H && index < parts.length - 1; h++) { // not the values
          const vector = joined.subarray(start + h * D, start + (h + 1) * D);
          if (gain) vector.set(normalize(vector, "rmsnorm", gain));
          if (this.rotations) rotate(vector, this.rotations, t * D);
        }
        part.set(joined.subarray(start, start + C), t * C);
      });
    }
  }

  /** Compute the attention and the outputs of all heads at the positions from `from` to before `to`. */
  attend(run: Run, layer: number, from: number, to: number) {
    const { n_head: H, n_embd: C } = this.config, D = C / H, scale = 1 / Math.sqrt(D);
    const k = run.k[layer], v = run.v[layer];
    for (let t = from; t < to; t++) {
      for (let h = 0; h < H; h++) {
        const here = t * C + h * D, start = rowStart(H, t) + h * (t + 1);
        const weights = run.weights[layer].subarray(start, start + t + 1);
        compareKeys(new Float64Array(run.q[layer].subarray(here, here + D)), k.subarray(h * D), C, weights);
        let highest = -Infinity, total = 0;
        for (let s = 0; s <= t; s++) if (weights[s] > highest) highest = weights[s];
        for (let s = 0; s <= t; s++) total += weights[s] = Math.exp((weights[s] - highest) * scale);
        for (let s = 0; s <= t; s++) weights[s] /= total;
        run.outputs[layer].set(averageValues(weights, v.subarray(h * D), C, D), here);
      }
    }
  }

  /** Add the outputs of the heads that are not muted, and then those of the MLP, to the residual stream. */
  mix(run: Run, layer: number, from: number, to: number) {
    const { n_head: H, n_embd: C, activation } = this.config, block = `blocks.${layer}`, rows = to - from;
    const outputs = run.outputs[layer].slice(from * C, to * C), D = C / H;
    for (let h = 0; h < H; h++) {
      if (!run.muted.has(layer * H + h)) continue;
      for (let row = 0; row < rows; row++) outputs.fill(0, row * C + h * D, row * C + (h + 1) * D);
    }
    const x = this.linear(`${block}.attention.proj`, outputs, rows);
    for (let i = 0; i < x.length; i++) x[i] += run.x[layer][from * C + i];
    const normed = this.norm(x, `${block}.norm2`), hidden = this.linear(`${block}.mlp.up`, normed, rows);
    const gate = activation === "swiglu" ? this.linear(`${block}.mlp.gate`, normed, rows) : null;
    for (let i = 0; i < hidden.length; i++) {
      hidden[i] = gate ? hidden[i] * activate(gate[i], activation) : activate(hidden[i], activation);
    }
    const change = this.linear(`${block}.mlp.down`, hidden, rows), next = run.x[layer + 1];
    for (let i = 0; i < x.length; i++) next[from * C + i] = x[i] + change[i];
  }

  /** Return the steps of one head at a position t: its query (D), the scores and the weights of the keys (S), the
   * value of the most attended letter (D), its output (D), and the logits (V). */
  detail(run: Run, layer: number, head: number, t: number) {
    const { n_head: H, n_embd: C } = this.config, D = C / H, start = rowStart(H, t) + head * (t + 1);
    const part = (all: Float32Array[], s: number) => all[layer].slice(s * C + head * D, s * C + (head + 1) * D);
    const q = part(run.q, t), weights = run.weights[layer].slice(start, start + t + 1);
    const scores = Float32Array.from(weights, (_, s) => dot(q, 0, run.k[layer], s * C + head * D, D));
    const value = part(run.v, argmax(weights));
    return { q, scores, weights, value, output: part(run.outputs, t), logits: run.logits(t).slice() };
  }

  /** Return the attention (T, T) of one head at all positions. */
  matrix(run: Run, layer: number, head: number) {
    const H = this.config.n_head, T = run.ids.length, weights = new Float32Array(T * T);
    for (let t = 0; t < T; t++) {
      const start = rowStart(H, t) + head * (t + 1);
      weights.set(run.weights[layer].subarray(start, start + t + 1), t * T);
    }
    return weights;
  }
}

/** Return the attention (L, H, S) of one position. */
export function attentionAt(run: Run, H: number, position: number) {
  const size = H * (position + 1), start = rowStart(H, position);
  const all = new Float32Array(run.weights.length * size);
  run.weights.forEach((weights, layer) => all.set(weights.subarray(start, start + size), layer * size));
  return all;
}

/** Return where the attention (H, S) of a position starts in `Run.weights`: after H (1 + 2 + ... + t) weights. */
function rowStart(H: number, t: number) {
  return (H * t * (t + 1)) / 2;
}

/** @returns a run without numbers */
export function newRun(ids: number[], muted: Set<number>, V: number): Run {
  return {
    ids, muted, x: [], q: [], k: [], v: [], weights: [], outputs: [], allLogits: new Float32Array(),
    logits(position) { return this.allLogits.subarray(position * V, (position + 1) * V); },
  };
}

/** Return the first layer with a head that is muted in one of two runs only, or the number of layers. */
function firstDifference(a: Set<number>, b: Set<number>, H: number, L: number) {
  const different = [...[...a].filter((head) => !b.has(head)), ...[...b].filter((head) => !a.has(head))];
  return Math.min(L, ...different.map((head) => Math.floor(head / H)));
}

/** Normalize each vector of x (..., size) and multiply by a gain (size). */
function normalize(x: Floats, kind: string, gain: Float32Array, bias?: Float32Array) {
  const y = new Float64Array(x.length), size = gain.length;
  for (let start = 0; start < x.length; start += size) {
    let mean = 0, squares = 0;
    if (kind === "layernorm") {
      for (let i = 0; i < size; i++) mean += x[start + i] / size;
    }
    for (let i = 0; i < size; i++) squares += (x[start + i] - mean) ** 2;
    const factor = 1 / Math.sqrt(squares / size + EPSILON[kind]);
    for (let i = 0; i < size; i++) y[start + i] = (x[start + i] - mean) * factor * gain[i] + (bias ? bias[i] : 0);
  }
  return y;
}

/** Set the scores (S) of a query (D) with keys whose rows are C apart. Four keys share each number that is read. */
function compareKeys(query: Float64Array, keys: Float32Array, C: number, scores: Float32Array) {
  const D = query.length, S = scores.length;
  let s = 0;
  for (; s + 4 <= S; s += 4) {
    let a0 = 0, a1 = 0, a2 = 0, a3 = 0;
    for (let d = 0, i = s * C; d < D; d++, i++) {
      const value = query[d];
      a0 += value * keys[i]; a1 += value * keys[i + C]; a2 += value * keys[i + 2 * C]; a3 += value * keys[i + 3 * C];
    }
    scores[s] = a0; scores[s + 1] = a1; scores[s + 2] = a2; scores[s + 3] = a3;
  }
  for (; s < S; s++) scores[s] = dot(query, 0, keys, s * C, D);
}

/** Return the weighted sum (D) of values whose rows are C apart. @param weights (S) */
function averageValues(weights: Float32Array, values: Float32Array, C: number, D: number) {
  const sum = new Float64Array(D), S = weights.length;
  let s = 0;
  for (; s + 4 <= S; s += 4) {
    const w0 = weights[s], w1 = weights[s + 1], w2 = weights[s + 2], w3 = weights[s + 3];
    for (let d = 0, i = s * C; d < D; d++, i++) {
      sum[d] += w0 * values[i] + w1 * values[i + C] + w2 * values[i + 2 * C] + w3 * values[i + 3 * C];
    }
  }
  for (; s < S; s++) {
    for (let d = 0, i = s * C; d < D; d++, i++) sum[d] += weights[s] * values[i];
  }
  return sum;
}

/** Rotate each pair (x[i], x[i + D / 2]) by its angle: RoPE (Su et al. 2021, https://arxiv.org/abs/2104.09864).
 * @param x (D)
 * @param table sines and cosines in turn
 * @param start of this position in the table */
function rotate(x: Floats, table: Float32Array, start: number) {
  const half = x.length / 2;
  for (let i = 0; i < half; i++) {
    const sin = table[start + 2 * i], cos = table[start + 2 * i + 1], a = x[i], b = x[i + half];
    x[i] = a * cos - b * sin;
    x[i + half] = a * sin + b * cos;
  }
}

/** Return sines and cosines in turn, for the positions from `first` to before `end`: (end - first, size). They are
 * the sinusoidal encodings of Vaswani et al. 2017, https://arxiv.org/abs/1706.03762, section 3.5, and the table of
 * RoPE. */
function waves(end: number, size: number, first: number = 0) {
  const table = new Float32Array((end - first) * size);
  for (let i = 0; i < table.length; i++) {
    const column = i % size, angle = (first + (i - column) / size) * POSITION_BASE ** ((column % 2 - column) / size);
    table[i] = column % 2 ? Math.cos(angle) : Math.sin(angle);
  }
  return table;
}

function activate(h: number, kind: string) {
  switch (kind) {
    case "relu2": return h > 0 ? h * h : 0;
    case "swiglu": return h / (1 + Math.exp(-h));
    case "gelu": return 0.5 * h * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (h + 0.044715 * h ** 3)));
    case "gelu_exact": return 0.5 * h * (1 + erf(h * Math.SQRT1_2));
    default: throw new Error(`this page does not know the activation ${kind}`);
  }
}

/** Return the error function to within 2e-7: Abramowitz and Stegun 1964, formula 7.1.26. */
function erf(x: number) {
  const t = 1 / (1 + 0.3275911 * Math.abs(x));
  const terms = [1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592];
  return Math.sign(x) * (1 - terms.reduce((value, term) => (value + term) * t, 0) * Math.exp(-x * x));
}
