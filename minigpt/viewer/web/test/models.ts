/** Small models with random weights, and replies of a session, for the tests. */

import { Session } from "../src/session.js";
import { decode, isRecurrent } from "../src/weights.js";
import type { Config, Model, Tensor } from "../src/weights.js";

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

const GATES: Record<string, number> = { rnn: 1, gru: 3, lstm: 4 };

/** Return the shape of each parameter by its name, as `parameter_shapes` in config/shapes.py does. */
export function shapes(config: Config, vocabulary: number) {
  const C = config.n_embd;
  const found = { "token_embedding.weight": [vocabulary, C] } as Record<string, number[]>;
  for (let layer = 0; layer < config.n_layer; layer++) {
    const block = `blocks.${layer}`;
    if (isRecurrent(config)) {
      for (const part of ["ih", "hh"]) {
        found[`${block}.weight_${part}_l0`] = [GATES[config.family] * C, C];
        if (config.bias) found[`${block}.bias_${part}_l0`] = [GATES[config.family] * C];
      }
      continue;
    }
    const gated = config.activation === "swiglu", hidden = gated ? 8 * Math.ceil(C / 3) : 4 * C;
    const attention = { "attention.qkv": [3 * C, C], "attention.proj": [C, C] };
    const linear = { ...attention, "mlp.up": [hidden, C], "mlp.down": [C, hidden] };
    for (const [name, shape] of Object.entries(gated ? { ...linear, "mlp.gate": [hidden, C] } : linear)) {
      found[`${block}.${name}.weight`] = shape;
      if (config.bias) found[`${block}.${name}.bias`] = [shape[0]];
    }
    if (config.qk_norm) found[`${block}.attention.qk_norm.weight`] = [C / config.n_head];
    addNorm(found, config, `${block}.norm1`);
    addNorm(found, config, `${block}.norm2`);
  }
  if (isRecurrent(config)) return found;
  if (config.position === "learned") found["position_embedding.weight"] = [config.context, C];
  addNorm(found, config, "norm");
  return found;
}

function addNorm(found: Record<string, number[]>, config: Config, name: string) {
  found[`${name}.weight`] = [config.n_embd];
  if (config.bias && config.norm === "layernorm") found[`${name}.bias`] = [config.n_embd];
}

/** Return a model with random weights as a page has it, packed as float32. */
export function packedModel(changes: Partial<Config> = {}, vocabulary: number = 5) {
  const config = { ...CONFIG, ...changes };
  const weights: Record<string, Tensor<string>> = {};
  let state = 1;
  const random = () => (state = (state * 48271) % 2147483647) / 2147483647 - 0.5; // Park and Miller 1988
  for (const [name, shape] of Object.entries(shapes(config, vocabulary))) {
    const values = Float32Array.from({ length: shape.reduce((a, b) => a * b) }, random);
    weights[name] = { shape, data: encode(values) };
  }
  return { config, weights };
}

export function randomModel(changes: Partial<Config> = {}, vocabulary: number = 5): Model {
  return decode(packedModel(changes, vocabulary));
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
