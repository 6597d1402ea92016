/**
 * The data that Python puts into the page.
 *
 * @typedef {{label: string, value: number, uniform: number}} Evidence
 * @typedef {{phrase: string, evidence: Evidence[], breaks: number}} Description
 *   breaks: the share of letters at which the first choice changes without the head
 *
 * @typedef {{name: string, step: number, parameters: number, summary: string,
 *   config: import("./weights.js").Config, weights: Record<string, import("./weights.js").Packed>,
 *   check: {ids: number[], logits: number[]}, rounding: number, heads: Description[][]}} Model
 *   summary: how long and when it was trained; check: minigpt's own logits, to compare with; rounding: the largest
 *   change of a probability because weights are rounded
 *
 * @typedef {{version: string, models: Model[], tokenizer: "char" | "byte", vocabulary?: string[], text: string,
 *   film: number[], losses: [number, number][], selected: number, head: [number, number] | null,
 *   sample: import("./filters.js").Filters, warnings: string[]}} Payload
 *   film: the moments of the run, as indices of models, by their steps; losses: steps and training losses of the run
 */

export {};
