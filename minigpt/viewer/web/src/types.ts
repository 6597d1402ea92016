/** The data that Python puts into the page. */

import type { Filters } from "./filters.js";
import type { Config, Tensor } from "./weights.js";

export type Description = {
  phrase: string; // what the head attends to, or "" if there is no pattern
  /** the share of its attention there, where there is such a letter, and that of uniform attention; null: no pattern */
  share: number | null;
  uniform: number | null;
  breaks: number; // the share of letters at which the first choice changes without the head
};
export type Model = {
  name: string;
  step: number;
  parameters: number;
  summary: string; // where it comes from
  config: Config;
  weights: Record<string, Tensor<string>>;
  check: { ids: number[], logits: number[] }; // minigpt's own logits, to compare with
  rounding: number; // the largest change of a probability because weights are rounded
  heads: Description[][];
};
export type Payload = {
  version: string;
  models: Model[];
  tokenizer: "char" | "byte";
  vocabulary?: string[];
  text: string;
  film: number[]; // the moments of the run, as indices of models, by their steps
  batch: number; // tokens in a step of the training
  losses: [number, number][]; // steps and training losses of the run
  selected: number;
  head: [number, number] | null;
  sample: Filters;
  warnings: string[];
};
