/** Unpack the weights of a page: base64 to Float32Array, by the names in the model's state_dict(). */

export type Config = {
  family: string, n_layer: number, n_head: number, n_embd: number, context: number, position: string, norm: string,
  activation: string, qk_norm: boolean, bias: boolean,
};
/** int8 with a scale for each row, or float32 */
export type Packed = { shape: number[], data: string, scale?: string };
/** What the engine needs of a page's model. */
export type Model = { config: Config, weights: Record<string, Packed> };
export type Weights = Record<string, Float32Array>;

const GATES = { rnn: 1, gru: 3, lstm: 4 } as Record<string, number>;

export function isRecurrent(config: Config) {
  return config.family in GATES;
}

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

/** Unpack and check all weights of a model. */
export function unpack({ config, weights }: Model): Weights {
  const vocabulary = weights["token_embedding.weight"]?.shape?.[0];
  if (!(vocabulary > 0)) throw damaged("token_embedding.weight is missing");
  const expected = shapes(config, vocabulary);
  const extra = Object.keys(weights).find((name) => !(name in expected));
  if (extra !== undefined) throw damaged(`${extra} is not a weight of this model`);
  const unpacked: Weights = {};
  for (const [name, shape] of Object.entries(expected)) {
    if (!weights[name]) throw damaged(`${name} is missing`);
    if (String(weights[name].shape) !== String(shape)) {
      throw damaged(`${name} has the shape (${weights[name].shape}), not (${shape})`);
    }
    unpacked[name] = unpackTensor(name, weights[name]);
  }
  return unpacked;
}

function unpackTensor(name: string, { shape, data, scale }: Packed) {
  const size = shape.reduce((product, n) => product * n, 1), values = new Float32Array(size);
  if (scale === undefined) {
    values.set(floats(name, data, size));
  } else {
    const integers = new Int8Array(bytes(name, data, size)), scales = floats(name, scale, shape[0]);
    const columns = size / shape[0];
    for (let i = 0; i < size; i++) values[i] = integers[i] * scales[Math.floor(i / columns)];
  }
  if (!values.every(Number.isFinite)) throw damaged(`${name} is not finite`);
  return values;
}

/** Decode float32. Pages are little-endian, like every machine with a browser. */
function floats(name: string, data: string, size: number) {
  return new Float32Array(bytes(name, data, 4 * size));
}

function bytes(name: string, data: string, size: number) {
  let text = "";
  try {
    text = atob(data);
  } catch {
    throw damaged(`${name} is not base64`);
  }
  if (text.length !== size) throw damaged(`${name} has ${text.length} bytes, not ${size}`);
  const decoded = new Uint8Array(size);
  for (let i = 0; i < size; i++) decoded[i] = text.charCodeAt(i);
  return decoded.buffer;
}

function damaged(what: string) {
  return new Error(`This page is damaged: ${what}. Make it again with minigpt inspect.`);
}
