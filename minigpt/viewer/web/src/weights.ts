/** The weights of a page's models: base64 in the page, then integers in memory, and numbers while a model computes. */

export type Config = {
  family: string, n_layer: number, n_head: number, n_embd: number, context: number, position: string, norm: string,
  activation: string, qk_norm: boolean, bias: boolean,
};
/** int8 with a scale for each row, or float32; in base64, or decoded */
export type Tensor<Data> = { shape: number[], data: Data, scale?: Data };
/** What the engine needs of a page's model, by the names in its `state_dict()`. */
export type Model<Data = ArrayBuffer> = { config: Config, weights: Record<string, Tensor<Data>> };
export type Weights = Record<string, Float32Array>;

export function isRecurrent({ family }: Config) {
  return ["rnn", "gru", "lstm"].includes(family);
}

/** Decode the base64 of a model. Pages are little-endian, like common machines. */
export function decode({ config, weights }: Model<string>): Model {
  const tensors = Object.entries(weights).map(([name, { shape, data, scale }]) => {
    const size = shape.reduce((product, n) => product * n, 1), isFloat = scale === undefined;
    const scales = isFloat ? undefined : bytes(name, scale as string, 4 * shape[0]);
    return [name, { shape, data: bytes(name, data, isFloat ? 4 * size : size), scale: scales }] as const;
  });
  return { config, weights: Object.fromEntries(tensors) };
}

/** The weights of a model as float32. */
export function unpack({ weights }: Model): Weights {
  const unpacked = Object.entries(weights).map(([name, { data, scale }]) => {
    const values = scale ? Float32Array.from(new Int8Array(data)) : new Float32Array(data);
    const scales = new Float32Array(scale ?? new ArrayBuffer()), columns = values.length / scales.length;
    for (let i = 0; scale && i < values.length; i++) values[i] *= scales[Math.floor(i / columns)];
    if (!values.every(Number.isFinite)) throw new Error(`${name} is not finite`);
    return [name, values] as const;
  });
  return Object.fromEntries(unpacked);
}

function bytes(name: string, data: string, size: number) {
  let text = "";
  try {
    text = atob(data);
  } catch {
    throw new Error(`${name} is not base64`);
  }
  if (text.length !== size) throw new Error(`${name} has ${text.length} bytes, not ${size}`);
  return Uint8Array.from(text, (letter) => letter.charCodeAt(0)).buffer;
}
