'use strict';
// The numbers of the page. In the file they are short text, made by packing.py; here they become arrays again.
// Everything counts from 0. A layer is named by its place among the layers of the page; `layerName` gives its number.

const page = JSON.parse(document.getElementById('data').textContent);
const T = page.text.symbols.length;
const L = page.layers.length;
const H = page.heads;

/** Replaces each packed array within `tree` by its numbers. */
async function unpackAll(tree) {
  if (tree === null || typeof tree !== 'object') return tree;
  if (typeof tree.data === 'string' && tree.shape) return unpack(tree);
  await Promise.all(
    Object.keys(tree).map(async name => {
      tree[name] = await unpackAll(tree[name]);
    }),
  );
  return tree;
}

const DIGITS = '0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%:()*+-;.=,?@^_`{|}~';
const valueOf = new Uint8Array(128);
[...DIGITS].forEach((digit, value) => {
  valueOf[digit.charCodeAt(0)] = value;
});

/** Returns what base 85 writes, four bytes as five digits (RFC 1924, with . , : for its < > &). */
function bytesOf(text) {
  const groups = Math.ceil(text.length / 5);
  const bytes = new DataView(new ArrayBuffer(4 * groups));
  for (let group = 0; group < groups; group++) {
    let number = 0;
    for (let at = 5 * group; at < 5 * group + 5; at++) {
      number = 85 * number + (at < text.length ? valueOf[text.charCodeAt(at)] : 84);
    }
    bytes.setUint32(4 * group, number);
  }
  return new Uint8Array(bytes.buffer, 0, Math.floor((text.length * 4) / 5));
}

/** Returns the numbers of one packed array, one after the other; its shape is their property `shape`. */
async function unpack(packed) {
  const stream = new Blob([bytesOf(packed.data)]).stream().pipeThrough(new DecompressionStream('deflate'));
  const bytes = await new Response(stream).arrayBuffer();
  const codes = new { u8: Uint8Array, u16: Uint16Array, f32: Float32Array }[packed.type](bytes);
  const numbers = packed.low ? scaled(codes, packed) : codes;
  numbers.shape = packed.shape;
  return numbers;
}

function scaled(codes, { low, step }) {
  const size = codes.length / low.length;
  return Float32Array.from(codes, (code, i) => low[Math.floor(i / size)] + code * step[Math.floor(i / size)]);
}

/** How many weights come before query q in a head: each query has one for each key up to itself. */
const before = q => (q * (q + 1)) / 2;
const layerName = layer => page.layers[layer];
const headName = (layer, head) => `layer ${layerName(layer)} head ${head}`;

/** Returns the weights of query q over keys 0 to q. `from` is `page.attention`, or that of a run compared. */
function weightsOf(layer, head, q, from = page.attention, heads = H) {
  const start = (layer * heads + head) * before(T) + before(q);
  return Float32Array.from(from.weights.subarray(start, start + q + 1), level => page.levels[level]);
}

/** Returns the strongest key of a query, found by Python: levels cannot tell weights apart that are nearly alike. */
const strongestOf = (layer, head, q) => page.attention.strongest[(layer * H + head) * T + q];

/** Returns for each key up to q its share of |weight · v W_O|, how much the head writes because of it. */
function writtenOf(layer, head, q) {
  const start = (layer * H + head) * T;
  const parts = weightsOf(layer, head, q).map((weight, k) => weight * page.attention.output_norms[start + k]);
  const sum = parts.reduce((a, b) => a + b, 0) || 1;
  return parts.map(part => part / sum);
}

const meansOfHeads = []; // of each layer that was asked for, laid out as the weights of one head

function meanOfHeads(layer) {
  const size = before(T);
  const of = head => page.attention.weights.subarray((layer * H + head) * size, (layer * H + head + 1) * size);
  const heads = Array.from({ length: H }, (_, head) => of(head));
  return Float32Array.from(heads[0], (_, i) => heads.reduce((sum, codes) => sum + page.levels[codes[i]], 0) / H);
}

/**
 * Returns what share of query q comes from each place, after all layers up to `layer`: attention rollout (Abnar and
 * Zuidema 2020, section 3). Each layer keeps half of what was there and takes the other half from where it looks.
 */
function rollout(layer, q) {
  let shares = new Float32Array(q + 1);
  shares[q] = 1;
  for (let at = layer; at >= 0; at--) {
    meansOfHeads[at] ??= meanOfHeads(at);
    const below = shares.map(share => share / 2);
    for (let from = 0; from <= q; from++) {
      for (let key = 0; key <= from; key++) below[key] += (shares[from] / 2) * meansOfHeads[at][before(from) + key];
    }
    shares = below;
  }
  const sum = shares.reduce((a, b) => a + b);
  return shares.map(share => share / sum);
}

const sign = place => page.symbols[page.text.symbols[place]][0];
const spoken = place => page.symbols[page.text.symbols[place]][1];
const isUnseen = place => page.symbols[page.text.symbols[place]][2] === 1;

/** Writes a share with two decimals, which is as many as its level has. */
const two = share => (share > 0 && share < 0.005 ? '<0.01' : share.toFixed(2));
/** Writes any number with three digits that count. */
const short = number =>
  number === null || number === undefined || Number.isNaN(number)
    ? '–'
    : Math.abs(number) >= 1000 || number === 0
      ? String(Math.round(number))
      : Number(number.toPrecision(3)).toString();
const signed = number => (number > 0 ? '+' : '') + short(number).replace('-', '−');

function greatest(values) {
  let best = 0;
  for (let i = 1; i < values.length; i++) if (values[i] > values[best]) best = i;
  return best;
}
