'use strict';
// The data of the page. packing.py compresses arrays into text, and this file unpacks them.
// Layers, heads and positions count from 0. A layer is its index on this page; `layerNumber` is its index in the model.

const page = JSON.parse(document.getElementById('data').textContent);
const T = page.text.symbols.length;
const L = page.layers.length;
const H = page.heads;

const range = (count, of = i => i) => Array.from({ length: count }, (_, i) => of(i));

/** Replace each packed array in `tree` with its numbers. */
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
const digitValue = new Uint8Array(128);
[...DIGITS].forEach((digit, value) => {
  digitValue[digit.charCodeAt(0)] = value;
});

/** Decode base 85: five digits for four bytes (RFC 1924, with . , : in place of < > &). */
function decode(text) {
  const groups = Math.ceil(text.length / 5);
  const bytes = new DataView(new ArrayBuffer(4 * groups));
  for (let group = 0; group < groups; group++) {
    let number = 0;
    for (let at = 5 * group; at < 5 * group + 5; at++) {
      number = 85 * number + (at < text.length ? digitValue[text.charCodeAt(at)] : 84);
    }
    bytes.setUint32(4 * group, number);
  }
  return new Uint8Array(bytes.buffer, 0, Math.floor((text.length * 4) / 5));
}

/** Return the numbers of a packed array as a flat typed array with the property `shape`. */
async function unpack({ type, shape, data, low, step }) {
  const stream = new Blob([decode(data)]).stream().pipeThrough(new DecompressionStream('deflate'));
  const bytes = await new Response(stream).arrayBuffer();
  const codes = new { u8: Uint8Array, u16: Uint16Array, f32: Float32Array }[type](bytes);
  const tableSize = low && codes.length / low.length;
  const table = i => Math.floor(i / tableSize);
  const numbers = low ? Float32Array.from(codes, (code, i) => low[table(i)] + code * step[table(i)]) : codes;
  return Object.assign(numbers, { shape });
}

/** The number of weights in a head before query q. Each query has one weight per key, up to itself. */
const triangle = q => (q * (q + 1)) / 2;
const layerNumber = layer => page.layers[layer];
const headName = (layer, head) => `layer ${layerNumber(layer)} head ${head}`;

/** Return the weights of query q over keys 0 to q. `source` is `page.attention` or `page.compare`. */
function weightsOf(layer, head, q, source = page.attention, heads = H) {
  const start = (layer * heads + head) * triangle(T) + triangle(q);
  return Float32Array.from(source.weights.subarray(start, start + q + 1), level => page.levels[level]);
}

/** Return the strongest key of a query. Python computes it, because rounded weights have ties. */
const strongestKey = (layer, head, q) => page.attention.strongest[(layer * H + head) * T + q];

/** Return the share of each key up to q in the head's output, by norm: |a v W_O|. */
function normSharesOf(layer, head, q) {
  const start = (layer * H + head) * T;
  const norms = weightsOf(layer, head, q).map((weight, key) => weight * page.attention.output_norms[start + key]);
  return toShares(norms);
}

function toShares(numbers) {
  const sum = numbers.reduce((a, b) => a + b, 0) || 1;
  return numbers.map(number => number / sum);
}

const headMeans = []; // the mean of each layer's heads, laid out like one head; computed on first use

function meanOfHeads(layer) {
  const size = triangle(T);
  const levels = range(H, head => page.attention.weights.subarray((layer * H + head) * size).subarray(0, size));
  return Float32Array.from(levels[0], (_, i) => levels.reduce((sum, codes) => sum + page.levels[codes[i]], 0) / H);
}

/**
 * Return the share of each position in query q after `layer`: attention rollout (Abnar and Zuidema 2020, section 3).
 * Each layer keeps half of its input and takes the other half from the positions that its heads attend to.
 */
function rollout(layer, q) {
  let shares = new Float32Array(q + 1);
  shares[q] = 1;
  for (let at = layer; at >= 0; at--) {
    headMeans[at] ??= meanOfHeads(at);
    const below = shares.map(share => share / 2);
    for (let query = 0; query <= q; query++) {
      for (let key = 0; key <= query; key++) below[key] += (shares[query] / 2) * headMeans[at][triangle(query) + key];
    }
    shares = below;
  }
  return toShares(shares);
}

const symbolAt = position => page.symbols[page.text.symbols[position]];
const glyphAt = position => symbolAt(position)[0];
const nameAt = position => symbolAt(position)[1];
const isReplaced = position => symbolAt(position)[2] === 1;
/** Return the name of a position, such as "17 e". */
const positionName = position => `${position} ${nameAt(position)}`;

/** Format a weight to the two decimals that the page stores. */
const formatWeight = weight => (weight > 0 && weight < 0.005 ? '<0.01' : weight.toFixed(2));
/** Format a number to three significant digits. */
const formatNumber = number =>
  number === null || number === undefined || Number.isNaN(number)
    ? '–'
    : Math.abs(number) >= 1000 || number === 0
      ? String(Math.round(number))
      : Number(number.toPrecision(3)).toString();
const formatSigned = number => (number > 0 ? '+' : '') + formatNumber(number).replace('-', '−');
const formatPercent = share => (share < 0.001 ? '<0.1%' : `${(share * 100).toFixed(share < 0.1 ? 1 : 0)}%`);

/** Capitalize the first letter of a text. */
const sentence = text => text[0].toUpperCase() + text.slice(1);

const argmax = values => values.reduce((best, value, i) => (value > values[best] ? i : best), 0);
