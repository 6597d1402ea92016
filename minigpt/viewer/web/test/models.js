/** Small models with random weights, and replies of a session, for the tests. */

import { shapes } from "../src/weights.js";
import { Session } from "../src/session.js";

/** @type {import("../src/weights.js").Config} */
export const CONFIG = {
  family: "modern", n_layer: 2, n_head: 2, n_embd: 8, context: 16, position: "rotary", norm: "rmsnorm",
  activation: "relu2", qk_norm: true, bias: false,
};

/**
 * Run a generator to its end, and return its result.
 * @template T
 * @param {Generator<void, T, void>} work @returns {T}
 */
export function finish(work) {
  for (;;) {
    const { done, value } = work.next();
    if (done) return /** @type {T} */ (value);
  }
}

/** @param {Float32Array | Int8Array} values */
export function encode(values) {
  return Buffer.from(values.buffer).toString("base64");
}

/**
 * Return a model with random weights, packed as float32.
 * @param {Partial<import("../src/weights.js").Config>} [changes] @param {number} [vocabulary]
 */
export function randomModel(changes = {}, vocabulary = 5) {
  const config = { ...CONFIG, ...changes };
  const weights = /** @type {Record<string, import("../src/weights.js").Packed>} */ ({});
  let state = 1;
  const random = () => (state = (state * 48271) % 2147483647) / 2147483647 - 0.5; // Park and Miller 1988
  for (const [name, shape] of Object.entries(shapes(config, vocabulary))) {
    const values = Float32Array.from({ length: shape.reduce((a, b) => a * b) }, random);
    weights[name] = { shape, data: encode(values) };
  }
  return { config, weights };
}

/**
 * Send requests at once, and return this number of replies.
 * @param {import("../src/weights.js").Model[]} models @param {any[]} requests @param {number} [answers] expected
 * @returns {Promise<any[]>}
 */
export function replies(models, requests, answers = requests.length) {
  return new Promise((resolve) => {
    const found = /** @type {any[]} */ ([]);
    const session = new Session(models, (reply) => {
      if (found.push(reply) === answers) setTimeout(resolve, 20, found);
    });
    for (const request of requests) session.send(request);
  });
}
