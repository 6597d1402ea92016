/** The recurrent networks of model/recurrent.py. States are kept for each position, so that a prefix is reused. */

import { CHUNK, commonPrefix, extend, multiply } from "./linear.js";
import { newRun } from "./model.js";
import type { Floats } from "./linear.js";
import type { Run } from "./model.js";
import type { Config, Weights } from "./weights.js";

/** `outputs` are the hidden states (L) times (T, C). q, k, v and weights are empty: there are no heads. */
export type States = Run & {
  cells: Float32Array[]; // (L) times (T, C): the cells of an LSTM
};

export class Recurrent {
  readonly vocabulary: number;

  /** @param weights named as in the `state_dict()` of the model */
  constructor(readonly config: Config, readonly weights: Weights) {
    this.vocabulary = weights["token_embedding.weight"].length / config.n_embd;
  }

  /** Compute a text, from the first token that differs from `previous`. @param ids (T) */
  *run(ids: number[], { previous = null }: { previous?: States | null } = {}): Generator<void, States, void> {
    const { n_layer: L, n_embd: C } = this.config, T = ids.length, V = this.vocabulary;
    const prefix = previous ? commonPrefix(ids, previous.ids) : 0, embedding = this.weights["token_embedding.weight"];
    const run = Object.assign(newRun(ids, new Set(), V), { cells: [] }) as States;
    run.x.push(extend(previous?.x[0], prefix, T * C, C));
    for (let t = prefix; t < T; t++) {
      const token = embedding.subarray(ids[t] * C, (ids[t] + 1) * C);
      run.x[0].set(token.map((value) => value * Math.sqrt(C)), t * C);
    }
    run.allLogits = extend(previous?.allLogits, prefix, T * V, V);
    for (let layer = 0; layer < L; layer++) {
      run.x.push(extend(previous?.x[layer + 1], prefix, T * C, C));
      run.outputs.push(extend(previous?.outputs[layer], prefix, T * C, C));
      run.cells.push(extend(previous?.cells[layer], prefix, T * C, C));
    }
    for (let from = prefix; from < T; from += CHUNK) {
      const to = Math.min(from + CHUNK, T);
      for (let layer = 0; layer < L; layer++) {
        this.advance(run, layer, from, to);
        yield;
      }
      const output = run.x[L].subarray(from * C, to * C), logits = run.allLogits.subarray(from * V, to * V);
      multiply(embedding, undefined, output, to - from, logits);
      yield;
    }
    return run;
  }

  /** Compute a layer at the positions from `from` to before `to`. */
  advance(run: States, layer: number, from: number, to: number) {
    const { n_embd: C, family } = this.config;
    const [ih, hh] = ["ih", "hh"].map((part) => this.weights[`blocks.${layer}.weight_${part}_l0`]);
    const [biasX, biasH] = ["ih", "hh"].map((part) => this.weights[`blocks.${layer}.bias_${part}_l0`]);
    const gates = ih.length / C, x = new Float64Array((to - from) * gates), h = new Float64Array(gates);
    multiply(ih, biasX, run.x[layer].subarray(from * C, to * C), to - from, x);
    const states = run.outputs[layer], cells = run.cells[layer], zeros = new Float32Array(C);
    for (let t = from; t < to; t++) {
      const last = (t - 1) * C, before = t ? states.subarray(last, t * C) : zeros;
      multiply(hh, biasH, before, 1, h);
      const step = { x: x.subarray((t - from) * gates), h, before, cell: t ? cells.subarray(last, t * C) : zeros };
      for (let i = 0; i < C; i++) {
        const [state, cell] = STEPS[family](step, i, C);
        states[t * C + i] = state;
        cells[t * C + i] = cell;
        run.x[layer + 1][t * C + i] = state + (layer ? run.x[layer][t * C + i] : 0);
      }
    }
  }
}

/** Each returns number i of the new state and of the new cell. `x` and `h` (gates, C) are the products of the input and
of the state before, in PyTorch's order of gates. */
export type Step = { x: Floats, h: Floats, before: Floats, cell: Floats };
const STEPS: Record<string, (step: Step, i: number, C: number) => number[]> = {
  rnn: ({ x, h }, i) => [Math.tanh(x[i] + h[i]), 0],
  gru({ x, h, before }, i, C) {
    const reset = sigmoid(x[i] + h[i]), keep = sigmoid(x[C + i] + h[C + i]);
    return [keep * before[i] + (1 - keep) * Math.tanh(x[2 * C + i] + reset * h[2 * C + i]), 0];
  },
  lstm({ x, h, cell }, i, C) {
    const [input, forget, candidate, output] = [0, 1, 2, 3].map((gate) => x[gate * C + i] + h[gate * C + i]);
    const next = sigmoid(forget) * cell[i] + sigmoid(input) * Math.tanh(candidate);
    return [sigmoid(output) * Math.tanh(next), next];
  },
};

function sigmoid(x: number) {
  return 1 / (1 + Math.exp(-x));
}
