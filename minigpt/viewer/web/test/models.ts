/** Small models with random weights, and replies of a session, for the tests. */

import { shapes } from "../src/weights.js";
import { Session } from "../src/session.js";
import type { Config, Model, Packed } from "../src/weights.js";

export const CONFIG: Config = {
  family: "modern", n_layer: 2, n_head: 2, n_embd: 8, context: 16, position: "rotary", norm: "rmsnorm",
  activation: "relu2", qk_norm: true, bias: false,
};

/** Run a generator to its end, and return its result. */
export function finish<T>(work: Generator<void, T, void>): T {
  for (;;) {
    const { done, value } = work.next();
    if (done) return value as T;
  }
}

export function encode(values: Float32Array | Int8Array) {
  return Buffer.from(values.buffer).toString("base64");
}

/** Return a model with random weights, packed as float32. */
export function randomModel(changes: Partial<Config> = {}, vocabulary: number = 5) {
  const config = { ...CONFIG, ...changes };
  const weights: Record<string, Packed> = {};
  let state = 1;
  const random = () => (state = (state * 48271) % 2147483647) / 2147483647 - 0.5; // Park and Miller 1988
  for (const [name, shape] of Object.entries(shapes(config, vocabulary))) {
    const values = Float32Array.from({ length: shape.reduce((a, b) => a * b) }, random);
    weights[name] = { shape, data: encode(values) };
  }
  return { config, weights };
}

/** Send requests at once, and return this number of replies. @param answers expected */
export function replies(models: Model[], requests: any[], answers: number = requests.length): Promise<any[]> {
  return new Promise((resolve) => {
    const found: any[] = [];
    const session = new Session(models, (reply) => {
      if (found.push(reply) === answers) setTimeout(resolve, 20, found);
    });
    for (const request of requests) session.send(request);
  });
}
