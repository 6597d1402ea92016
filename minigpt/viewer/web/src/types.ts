/** The data that Python puts into the page. */

import type { Filters } from "./filters.js";
import type { Config, Tensor } from "./weights.js";

export type Description = {
  /** what the head attends to, or "" if there is no pattern */
  phrase: string;
  /** the share of its attention there, where there is such a letter, and that of uniform attention; null: no pattern */
  share: number | null;
  uniform: number | null;
  /** the share of letters at which the first choice changes without the head */
  breaks: number;
};
export type Model = {
  name: string;
  step: number;
  parameters: number;
  /** how long and when it was trained */
  summary: string;
  config: Config;
  weights: Record<string, Tensor<string>>;
  /** minigpt's own logits, to compare with */
  check: { ids: number[], logits: number[] };
  /** the largest change of a probability because weights are rounded */
  rounding: number;
  heads: Description[][];
};
export type Payload = {
  version: string;
  models: Model[];
  tokenizer: "char" | "byte";
  vocabulary?: string[];
  text: string;
  /** the moments of the run, as indices of models, by their steps */
  film: number[];
  /** letters in a step of the training */
  batch: number;
  /** steps and training losses of the run */
  losses: [number, number][];
  selected: number;
  head: [number, number] | null;
  sample: Filters;
  warnings: string[];
};
