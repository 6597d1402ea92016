/** From logits to the next token, as sampling/filters.py: temperature, top-k, top-p, min-p, in this order. */

import type { Floats } from "./linear.js";

export type Filters = { temperature: number, top_k: number, top_p: number, min_p: number };

/** Return the unnormalized probability of each token. It is zero for filtered tokens. At temperature 0, it is 1 for
 * the most likely token, the first of equals, and 0 for all others.
 * @param logits (V)
 * @returns (V) */
export function weigh(logits: ArrayLike<number>, { temperature, top_k, top_p, min_p }: Filters): Float64Array {
  const highest = largest(logits), weights = new Float64Array(logits.length);
  if (temperature === 0) {
    weights[Array.prototype.indexOf.call(logits, highest)] = 1;
    return weights;
  }
  for (let i = 0; i < weights.length; i++) weights[i] = Math.exp((logits[i] - highest) / temperature);
  if (0 < top_k && top_k < weights.length) {
    for (const id of descending(weights).slice(top_k)) weights[id] = 0;
  }
  if (top_p < 1) { // Holtzman et al. 2020, https://arxiv.org/abs/1904.09751, section 3.1
    const order = descending(weights), total = sum(order.map((id) => weights[id]));
    let cumulative = 0;
    for (const id of order) {
      cumulative += weights[id];
      if (!(cumulative - weights[id] < top_p * total)) weights[id] = 0;
    }
  }
  if (min_p > 0) { // Nguyen et al. 2024, https://arxiv.org/abs/2407.01082
    const least = min_p * largest(weights);
    for (let i = 0; i < weights.length; i++) if (weights[i] < least) weights[i] = 0;
  }
  return weights;
}

/** The indices of values, the largest value first. Equal ones keep their order. */
export function descending(values: ArrayLike<number>) {
  return Array.from(values, (_, i) => i).sort((a, b) => values[b] - values[a]);
}

function sum(values: ArrayLike<number>) {
  let total = 0;
  for (let i = 0; i < values.length; i++) total += values[i];
  return total;
}

/** Choose a token by a random number in [0, 1). @param weights (V), for example from `weigh` */
export function choose(weights: Floats, uniform: number) {
  const limit = uniform * sum(weights);
  let cumulative = 0;
  for (let id = 0; id < weights.length; id++) {
    cumulative += weights[id];
    if (cumulative > limit) return id;
  }
  throw new Error("no token has a positive weight");
}

/** @param weights (V) @returns weights (V) divided by their sum */
export function normalize(weights: Floats): Float64Array {
  const total = sum(weights);
  return Float64Array.from(weights, (weight) => weight / total);
}

/** @param logits (V) @returns probabilities (V) */
export function softmax(logits: ArrayLike<number>): Float64Array {
  return normalize(weigh(logits, { temperature: 1, top_k: 0, top_p: 1, min_p: 0 }));
}

/** @returns the index of the largest value, the first of equals */
export function argmax(values: ArrayLike<number>): number {
  return Array.prototype.indexOf.call(values, largest(values));
}

/** The largest value. `Math.max(...values)` fails for a large vocabulary. */
export function largest(values: ArrayLike<number>) {
  let most = -Infinity;
  for (let i = 0; i < values.length; i++) most = Math.max(most, values[i]);
  return most;
}

/** @param logits (V) @returns the probability of this token alone */
export function probability(logits: ArrayLike<number>, id: number): number {
  let total = 0;
  for (let i = 0; i < logits.length; i++) total += Math.exp(logits[i] - logits[id]);
  return 1 / total;
}

/** @param probabilities (V) @returns the entropy, in nats */
export function entropy(probabilities: ArrayLike<number>): number {
  let total = 0;
  for (let i = 0; i < probabilities.length; i++) {
    if (probabilities[i] > 0) total -= probabilities[i] * Math.log(probabilities[i]);
  }
  return total;
}
