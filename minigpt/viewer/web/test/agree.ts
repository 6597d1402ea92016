/** Compare the page's model with PyTorch's. tests/unit/viewer/test_web.py writes the cases and reads the result.
 *
 * Usage: node --import tsx agree.ts FILE. Prints the largest differences as JSON. */

import { readFileSync } from "node:fs";

import { normalize, weigh } from "../src/filters.js";
import { attentionAt, Transformer } from "../src/model.js";
import { Recurrent } from "../src/recurrent.js";
import { decode, isRecurrent, unpack } from "../src/weights.js";
import { finish } from "./models.js";
import type { Config } from "../src/weights.js";

type Case = {
  config: Config, weights: any, ids: number[], muted: number[], logits: number[][], attention: number[][][][],
  mutedLogits: number[][], filters: { logits: number[], settings: any, probabilities: number[] }[],
};

const largest: Record<string, number> = {};

function compare(name: string, found: ArrayLike<number>, expected: ArrayLike<number>) {
  if (found.length !== expected.length) throw new Error(`${name}: ${found.length} numbers, not ${expected.length}`);
  let most = largest[name] ?? 0;
  for (let i = 0; i < found.length; i++) {
    const difference = Math.abs(found[i] - expected[i]);
    if (!(difference <= most)) most = Number.isNaN(difference) ? Infinity : difference;
  }
  largest[name] = most;
}

function compareRuns(engine: Transformer | Recurrent, { ids, muted, logits, attention, mutedLogits }: Case) {
  const run = (text: number[], options: any) => finish(engine.run(text, options));
  const whole = run(ids, {}), T = ids.length;
  compare("logits", whole.allLogits, logits.flat());
  // a text that grows by one token, then by several, loses its end, and has another letter in its middle
  const other = ids.map((id, t) => (t === T >> 1 ? (id + 1) % engine.vocabulary : id));
  let previous = run(ids.slice(0, 1), {});
  for (const text of [ids.slice(0, 2), ids.slice(0, 3), ids, ids.slice(0, (T >> 1) + 1), other, ids]) {
    previous = run(text, { previous });
    compare("incremental", previous.allLogits, run(text, {}).allLogits);
  }
  if (!(engine instanceof Transformer)) return;
  for (let t = 0; t < T; t++) {
    const expected = attention.flatMap((layer) => layer.flatMap((head) => head[t].slice(0, t + 1)));
    compare("attention", attentionAt(whole, engine.config.n_head, t), expected);
  }
  const quiet = run(ids, { muted, previous });
  compare("muted", quiet.allLogits, mutedLogits.flat());
  compare("incremental", quiet.allLogits, run(ids, { muted }).allLogits);
  compare("incremental", run(ids, { previous: quiet }).allLogits, whole.allLogits);
  compare("incremental", run(other, { previous: quiet }).allLogits, run(other, {}).allLogits);
  const { n_layer: L, n_head: H } = engine.config;
  for (const base of [whole, quiet]) {
    for (let head = 0; head < L * H; head++) {
      const position = (7 * head) % T, all = run(ids, { muted: [...base.muted, head] });
      const found = finish(engine.without(base, Math.floor(head / H), head % H, position));
      compare("without", found.logits(position), all.logits(position));
    }
  }
}

const cases = JSON.parse(readFileSync(process.argv[2], "utf8")) as Case[];
for (const test of cases) {
  const weights = unpack(decode(test));
  compareRuns(new (isRecurrent(test.config) ? Recurrent : Transformer)(test.config, weights), test);
  for (const { logits, settings, probabilities } of test.filters) {
    compare("filters", normalize(weigh(logits, settings)), probabilities);
  }
}
console.log(JSON.stringify(largest));
