/**
 * The data that Python puts into the page.
 *
 * @typedef {{label: string, value: number, uniform: number | null}} Evidence
 * @typedef {{phrase: string, evidence: Evidence[]}} Description
 *
 * @typedef {object} Model
 * @property {string} name
 * @property {number} step
 * @property {number | null} loss
 * @property {number} parameters
 * @property {string} summary how long and when it was trained
 * @property {import("./weights.js").Config} config
 * @property {Record<string, import("./weights.js").Packed> | null} weights
 * @property {{ids: number[], logits: number[]}} check minigpt's own logits, to compare with
 * @property {number} rounding the largest change of a probability because weights are rounded
 * @property {Description[][]} heads
 * @property {any} recorded
 *
 * @typedef {object} Payload
 * @property {string} version
 * @property {Model[]} models
 * @property {"char" | "byte"} tokenizer
 * @property {string[]} [vocabulary]
 * @property {string} text
 * @property {number} selected
 * @property {[number, number] | null} head
 * @property {import("./app.js").Sampling} sample
 * @property {string[]} warnings
 */

export {};
