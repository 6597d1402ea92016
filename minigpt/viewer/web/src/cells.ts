/** The attention of a head at all letters, in the stages of its computation. */

import { argmax } from "./filters.js";

export type Cell = [row: number, column: number];

export const STAGES = {
  weights: "attention weights", scaled: "scores ÷ √D", scores: "scores q · k",
} as const;

export class Cells {
  readonly scores: Float32Array;
  readonly weights: Float32Array;
  readonly scale: number;
  stage: keyof typeof STAGES = "weights";

  /** @param reply (T, T) each */
  constructor(reply: { scores: Float32Array, weights: Float32Array }, readonly T: number, D: number) {
    ({ scores: this.scores, weights: this.weights } = reply);
    this.scale = Math.sqrt(D);
  }

  value([row, column]: Cell) {
    const index = row * this.T + column;
    if (this.stage === "weights") return this.weights[index];
    return this.scores[index] / (this.stage === "scaled" ? this.scale : 1);
  }

  /** All cells on and below the diagonal. */
  *seen(): Generator<Cell, void, void> {
    for (let row = 0; row < this.T; row++) for (let column = 0; column <= row; column++) yield [row, column];
  }

  /** The cell that a row attends to most. */
  strongest(row: number): Cell {
    return [row, argmax(this.weights.subarray(row * this.T, row * this.T + row + 1))];
  }

  /** The nearest cell of the matrix. */
  inside([row, column]: Cell): Cell {
    const clamp = (t: number) => Math.max(0, Math.min(this.T - 1, t));
    return [clamp(row), clamp(column)];
  }

  /** The cell with the largest value, at most `distance` away, that the mask does not hide. */
  largestNear([row, column]: Cell, distance: number): Cell {
    let best = this.inside([row, column]);
    const [top, left] = this.inside([row - distance, column - distance]);
    const [bottom, right] = this.inside([row + distance, column + distance]);
    for (let r = top; r <= bottom; r++)
      for (let c = left; c <= Math.min(r, right); c++)
        if (best[1] > best[0] || this.value([r, c]) > this.value(best)) best = [r, c];
    return best;
  }
}
