/** The attention of a head at all letters, in the stages of its computation. */

import { argmax } from "./filters.js";

/** @typedef {[row: number, column: number]} Cell */

export const STAGES = /** @type {const} */ ({
  weights: "attention weights", scaled: "scores ÷ √D", scores: "scores q · k",
});

export class Cells {
  /** @param {{scores: Float32Array, weights: Float32Array}} reply (T, T) each @param {number} T @param {number} D */
  constructor({ scores, weights }, T, D) {
    this.scores = scores;
    this.weights = weights;
    this.T = T;
    this.scale = Math.sqrt(D);
    this.stage = /** @type {keyof typeof STAGES} */ ("weights");
  }

  /** @param {Cell} cell */
  value([row, column]) {
    const index = row * this.T + column;
    if (this.stage === "weights") return this.weights[index];
    return this.scores[index] / (this.stage === "scaled" ? this.scale : 1);
  }

  /** All cells on and below the diagonal. @returns {Generator<Cell, void, void>} */
  *seen() {
    for (let row = 0; row < this.T; row++) for (let column = 0; column <= row; column++) yield [row, column];
  }

  /** The cell that a row attends to most. @param {number} row @returns {Cell} */
  strongest(row) {
    return [row, argmax(this.weights.subarray(row * this.T, row * this.T + row + 1))];
  }

  /** The nearest cell of the matrix. @param {Cell} cell @returns {Cell} */
  inside([row, column]) {
    const clamp = (/** @type {number} */ t) => Math.max(0, Math.min(this.T - 1, t));
    return [clamp(row), clamp(column)];
  }

  /** The cell with the largest value, at most `distance` away, that the mask does not hide.
   * @param {Cell} cell @param {number} distance @returns {Cell} */
  largestNear([row, column], distance) {
    let best = this.inside([row, column]);
    const [top, left] = this.inside([row - distance, column - distance]);
    const [bottom, right] = this.inside([row + distance, column + distance]);
    for (let r = top; r <= bottom; r++)
      for (let c = left; c <= Math.min(r, right); c++)
        if (best[1] > best[0] || this.value([r, c]) > this.value(best)) best = [r, c];
    return best;
  }
}
