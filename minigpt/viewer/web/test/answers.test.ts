/** Nothing gets lost: whatever a visitor does, and however late answers come, the page ends as a fresh one would. */

import assert from "node:assert/strict";
import { mock, test } from "node:test";

import fc from "fast-check";

import { App } from "../src/app.js";
import { storyOf } from "../src/film.js";
import { Vocabulary } from "../src/letters.js";

globalThis.requestAnimationFrame = () => 0 as any; // no panel draws
mock.timers.enable({ apis: ["setTimeout"] });

const SEED = Number(process.env.SEED ?? Math.floor(Math.random() * 2 ** 31));
const SEQUENCES = Number(process.env.SEQUENCES ?? 10_000);
const LETTERS = new Vocabulary("char", ["a", "b", "c"]);
const HEADS = [0, 1, 2, 3], CONTEXT = 4;

/** A run with three moments, and two others: one is a recurrent network. */
function payload(): any {
  const config = { family: "modern", n_layer: 2, n_head: 2, context: CONTEXT };
  const models = [100, 0, 50, 7].map((step) => ({ step, config, heads: [[{}, {}], [{}, {}]] }));
  const recurrent = { step: 9, config: { ...config, family: "lstm" }, heads: [] };
  const sample = { temperature: 0, top_k: 0, top_p: 1, min_p: 0 };
  return { film: [1, 2, 0], models: [...models, recurrent], text: "abcab", selected: 4, head: null, sample };
}

/** Numbers that only this question has. */
function numbers(question: unknown, count: number) {
  let state = 7;
  for (const letter of JSON.stringify(question)) state = (state * 31 + letter.charCodeAt(0)) % 2147483647;
  return Float32Array.from({ length: count }, () => (state = (state * 48271) % 2147483647) / 2147483647);
}

/** What a slow engine answers. */
function answer({ id, kind: asked, model, ids, selected, muted, layer, head }: any): any {
  const kind = asked === "moment" ? "look" : asked;
  const [luck, ...values] = numbers([kind, model, ids, selected, muted, layer, head], 4 + 4 * ids.length);
  if (luck < 0.02) return { id, kind: "error", message: "no memory" };
  const logits = Float32Array.from(values.slice(0, 3), (value) => 5 * value);
  if (kind === "write") return { id, kind, ids: [...logits].map(Math.floor) };
  const attention = model === 4 ? [] : values.slice(0, HEADS.length * (selected + 1));
  const surprise = new Float32Array([NaN, ...values].slice(0, ids.length));
  return { id, kind, logits, surprise, attention: new Float32Array(attention) };
}

/** A page whose engine has its answers later, in any order, or again. */
class Page {
  sent: any[] = [];
  opened: string[] = [];
  app: App;
  constructor() {
    this.app = new App(payload(), LETTERS, (request) => this.sent.push(request));
    this.app.ask();
  }

  /** Answer any request so far, which may be given up or answered already. @param at from 0 to 1 */
  reply(at: number) {
    const request = this.sent[Math.floor(at * this.sent.length)];
    this.app.answers.receive(answer(request));
  }

  /** Answer the last request until there is no other one, as the engine does. @param most answers */
  settle(most: number = Infinity) {
    for (let last: any; last !== this.sent.at(-1) && most > 0; most--) {
      last = this.sent.at(-1);
      this.app.answers.receive(answer(last));
      mock.timers.tick(100);
    }
  }

  /** What the panels draw from, as text. */
  picture() {
    const { app } = this, { state } = app, models = [state.model, state.pinned ?? state.model, ...app.film];
    const all = [...models.map((model) => app.fresh(model)), app.look], { whole, written } = app.look ?? {};
    const looks = all.map((look) => look && [look.key, look.logits, look.surprise, look.attention]);
    const effects = [...(app.look?.effects ?? [])].sort(), ready = models.map((model) => app.isCurrent(model));
    const story = storyOf(app), shown = { looks, effects, whole, written, ready, story };
    return JSON.stringify(shown, (_, value) => (value instanceof Float32Array ? String(value) : value));
  }
}

/** A new page that is in the state of another one. */
function fresh({ state }: App) {
  const page = new Page(), { text, letters, ids, selected, model, pinned, muted } = state;
  page.app.set({ text, letters, ids, selected, model, pinned, muted });
  page.app.ask();
  return page;
}

/** What a visitor and the engine do, by a number from 0 to 1. */
const ACTS: Record<string, (page: Page, at: number) => void> = {
  reply: (page, at) => page.reply(at),
  settle: (page, at) => page.settle(Math.floor(50 * at)),
  select: ({ app }, at) => app.select(Math.floor(at * app.state.letters.length)),
  type: ({ app }, at) => {
    const { text } = app.state, caret = Math.floor(at * (text.length + 1));
    app.edit(`${text.slice(0, caret)}${"abcx"[Math.floor(4 * at)]}${text.slice(caret)}`.slice(-9), caret + 1, "typing");
  },
  undo: ({ app }) => app.undo(),
  move: ({ app }, at) => app.moment >= 0 && app.moveTo(app.film[Math.floor(3 * at)]),
  pin: ({ app }) => app.pin(),
  show: ({ app }, at) => app.show(Math.floor(5 * at)),
  mute: ({ app }, at) => {
    if (app.model.heads.length) app.toggle({ layer: Math.floor(2 * at), head: Math.floor(4 * at) % 2 });
  },
  all: ({ app }) => app.mute([]),
  step: ({ app }) => app.step(),
  write: ({ app }) => app.write(),
  inspect: (page, at) => {
    const head = { layer: 0, head: Math.floor(2 * at) };
    if (page.app.model.heads.length) page.app.askOnce("matrix", head, () => page.opened.push(`${head.head}`));
  },
};

test(`any order of acts and answers ends as a fresh page (SEED=${SEED})`, () => {
  const at = fc.double({ min: 0, max: 1, maxExcluded: true, noNaN: true });
  const act = fc.tuple(fc.constantFrom("reply", "reply", ...Object.keys(ACTS)), at);
  const acts = fc.array(act, { minLength: 1, maxLength: 40 });
  fc.assert(fc.property(acts, (sequence) => {
    const page = new Page(), { app } = page;
    let story = storyOf(app);
    for (const [name, at] of sequence) {
      const wasComplete = story.isComplete;
      ACTS[name](page, at);
      story = storyOf(app, story);
      assert.ok(story.isComplete || !(wasComplete || story.lanes.length), "the strip shows a part of the answers");
    }
    app.stop();
    page.settle();
    assert.ok(app.wanted().every((question) => app.answers.has(question)), "an answer is lost");
    assert.equal(app.once.length, 0, "a sheet never opens");
    const other = fresh(app);
    other.settle();
    assert.equal(page.picture(), other.picture());
  }), { seed: SEED, numRuns: SEQUENCES });
});
