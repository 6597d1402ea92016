/** The data that Python puts into the page. */

import type { Filters } from "./filters.js";
import type { Config, Packed } from "./weights.js";

export type Evidence = { label: string, value: number, uniform: number };
export type Description = {
  phrase: string;
  evidence: Evidence[];
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
  weights: Record<string, Packed>;
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
  /** steps and training losses of the run */
  losses: [number, number][];
  selected: number;
  head: [number, number] | null;
  sample: Filters;
  warnings: string[];
};
