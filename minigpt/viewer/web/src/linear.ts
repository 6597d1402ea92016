/** Loops over numbers that the transformer and the recurrent networks share. No typed array here changes its length. */

export type Floats = Float32Array | Float64Array;

/** Rows that a driver waits for between two yields. A multiple of four. */
export const CHUNK = 8;

/** Multiply rows x (rows, inputs) by a transposed matrix (outputs, inputs), and add a bias. Four rows share each
 * weight that is read. Their numbers are interleaved first, so that the inner loop reads memory in order.
 * Sums have 64 bits: JavaScript is not faster with 32.
 * @param weight (outputs, inputs)
 * @param bias (outputs)
 * @param x (rows, inputs)
 * @param y (rows, outputs), overwritten */
export function multiply(weight: Float32Array, bias: Float32Array | undefined, x: Floats, rows: number, y: Floats) {
  const inputs = x.length / rows, outputs = weight.length / inputs;
  let row = 0;
  const packed = rows >= 4 ? new Float64Array(4 * inputs) : x;
  for (; row + 4 <= rows; row += 4) {
    for (let i = 0, from = row * inputs; i < inputs; i++, from++) {
      for (let r = 0; r < 4; r++) packed[4 * i + r] = x[from + r * inputs];
    }
    multiplyFour(weight, packed, inputs, y.subarray(row * outputs, (row + 4) * outputs));
  }
  for (; row < rows; row++) {
    multiplyOne(weight, x.subarray(row * inputs, (row + 1) * inputs), y.subarray(row * outputs, (row + 1) * outputs));
  }
  if (bias) {
    for (let i = 0; i < rows * outputs; i++) y[i] += bias[i % outputs];
  }
}

/** @param weight (outputs, inputs) @param x (inputs, 4), interleaved rows @param y (4, outputs) */
function multiplyFour(weight: Float32Array, x: Floats, inputs: number, y: Floats) {
  const outputs = y.length / 4;
  for (let o = 0; o < outputs; o += 2) {
    const pair = o + 1 < outputs ? 1 : 0; // an odd last output is computed twice
    let a0 = 0, b0 = 0, c0 = 0, d0 = 0, a1 = 0, b1 = 0, c1 = 0, d1 = 0;
    for (let p = o * inputs, q = p + pair * inputs, end = p + inputs, i = 0; p < end; p++, q++, i += 4) {
      const u = weight[p], v = weight[q], a = x[i], b = x[i + 1], c = x[i + 2], d = x[i + 3];
      a0 += a * u; b0 += b * u; c0 += c * u; d0 += d * u;
      a1 += a * v; b1 += b * v; c1 += c * v; d1 += d * v;
    }
    y[o] = a0; y[outputs + o] = b0; y[2 * outputs + o] = c0; y[3 * outputs + o] = d0;
    y[o + pair] = a1; y[outputs + o + pair] = b1; y[2 * outputs + o + pair] = c1; y[3 * outputs + o + pair] = d1;
  }
}

/** @param weight (outputs, inputs) @param x (inputs) @param y (outputs) */
function multiplyOne(weight: Float32Array, x: Floats, y: Floats) {
  const inputs = x.length, outputs = y.length;
  let o = 0;
  for (; o + 4 <= outputs; o += 4) {
    let a = 0, b = 0, c = 0, d = 0;
    for (let i = 0, p = o * inputs; i < inputs; i++, p++) {
      const v = x[i];
      a += v * weight[p]; b += v * weight[p + inputs]; c += v * weight[p + 2 * inputs]; d += v * weight[p + 3 * inputs];
    }
    y[o] = a; y[o + 1] = b; y[o + 2] = c; y[o + 3] = d;
  }
  for (; o < outputs; o++) y[o] = dot(weight, o * inputs, x, 0, inputs);
}

/** Return the dot product of a[i...] and b[j...]. */
export function dot(a: Floats, i: number, b: Floats, j: number, size: number) {
  let sum = 0;
  for (let end = i + size; i < end; i++, j++) sum += a[i] * b[j];
  return sum;
}

/** Return an array of `size` numbers that begins with the first `keep` rows of `previous`: a view of them if they
 * are enough, since nobody changes the numbers of a finished run.
 * @param width of a row */
export function extend(previous: Float32Array | undefined, keep: number, size: number, width: number = 1) {
  if (previous && size <= keep * width) return previous.subarray(0, size);
  const array = new Float32Array(size);
  if (previous) array.set(previous.subarray(0, keep * width));
  return array;
}

/** Return the number of ids at which two texts agree from their start. */
export function commonPrefix(a: ArrayLike<number>, b: ArrayLike<number>) {
  let n = 0;
  while (n < a.length && n < b.length && a[n] === b[n]) n++;
  return n;
}

