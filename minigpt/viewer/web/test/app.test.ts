import assert from "node:assert/strict";
import { mock, test } from "node:test";

import { App, MAX_LETTERS } from "../src/app.js";
import { Vocabulary } from "../src/letters.js";

globalThis.requestAnimationFrame = () => 0 as any; // no panel draws
mock.timers.enable({ apis: ["setTimeout"] });

const LETTERS = new Vocabulary("char", ["a", "b", "c", "\n"]);
const BYTES = new Vocabulary("byte");

const payload = (config: object, text: string): any => ({
  film: [],
  models: [{ config: { family: "modern", n_layer: 1, n_head: 2, context: 64, ...config }, heads: [[{}, {}]] }],
  text,
  selected: text.length - 1,
  head: null,
  sample: { temperature: 0 },
});

/** An app that has asked about the last letter of a text. */
function started(text: string, vocabulary: Vocabulary = LETTERS) {
  const app = new App(payload({}, text), vocabulary, () => {});
  app.ask();
  return app;
}

/** Answer the request on its way. */
function reply(app: App, more?: object) {
  const nothing = new Float32Array(), { id, question } = app.answers.sent ?? {};
  const answer = { id, kind: question?.kind, logits: nothing, surprise: nothing, attention: nothing };
  app.answers.receive({ ...answer, ...more } as any);
}

/** Answer the look on its way: this token is next. */
function answer(app: App, next: number) {
  const logits = new Float32Array(256);
  logits[next] = 1000;
  assert.equal(app.answers.sent?.question.kind, "look");
  reply(app, { logits });
}

/** Type at the end of the text. */
function type(app: App, letters: string) {
  for (const letter of letters) app.edit(app.state.text + letter, app.state.text.length + 1, "typing");
}

/** Undo until nothing is left, and return the texts. */
function undone(app: App) {
  const texts = [];
  while (app.history.past.length) {
    app.undo();
    texts.push(app.state.text);
  }
  return texts;
}

test("a GPT sees a window of the text, and a recurrent network sees all of it", () => {
  const position = (family: string) =>
    new App(payload({ family, context: 4 }, "abababab" + "a"), LETTERS, () => {}).position(0);
  assert.deepEqual([position("modern").from, position("modern").ids.length], [6, 3]);
  assert.deepEqual([position("lstm").from, position("lstm").ids.length], [0, 9]);
});

test("what interrupts a model inside a character drops its bytes, and Step waits for its letter", () => {
  const app = started("abc def", BYTES);
  app.continueWith(0xe4); // the first of three bytes
  app.select(2);
  assert.deepEqual([app.writer.bytes, app.state.text], [[], "abc def"]);
  answer(app, 0x21);
  app.select(4);
  app.step();
  app.select(3);
  answer(app, 0x21);
  assert.equal(app.state.text, "abc def");
  app.select(6);
  app.step();
  answer(app, 0x21);
  answer(app, 0x21);
  assert.equal(app.state.text, "abc def!");
});

test("Step before the first answer writes a letter once it comes", () => {
  const app = started("ab");
  app.step();
  answer(app, 2);
  assert.equal(app.state.text, "abc");
});

test("a byte model writes a byte order mark", () => {
  const app = started("ab", BYTES);
  app.step();
  for (const byte of [0xef, 0xbb, 0xbf]) answer(app, byte);
  assert.deepEqual([app.state.text, app.state.ids.length], ["ab\ufeff", 5]);
});

test("what a model writes until it pauses is one step of Undo", () => {
  const app = started("a");
  type(app, "b");
  answer(app, 0);
  app.write();
  for (const token of [0, 1, 2]) {
    answer(app, token);
    mock.timers.tick(100);
  }
  app.write();
  answer(app, 0);
  mock.timers.tick(100);
  assert.equal(app.state.text, "abaabc");
  app.write();
  assert.equal(app.state.text, "abaabca");
  app.write();
  assert.deepEqual(undone(app), ["abaabc", "ab", "a"]);
});

test("typing is one step of Undo, which a pause, a selection, a head or a model ends", (t) => {
  let now = 0;
  t.mock.method(performance, "now", () => now);
  const ends = {
    nothing: () => {},
    pause: () => (now += 1001),
    select: (app: App) => app.select(2),
    head: (app: App) => app.toggle({ layer: 0, head: 1 }),
    model: (app: App) => app.show(0),
  };
  for (const [name, end] of Object.entries(ends)) {
    const app = started("a");
    type(app, "bc");
    now += 999;
    end(app);
    type(app, "ab");
    assert.equal(app.state.text, "abcab");
    assert.deepEqual(undone(app), name === "nothing" ? ["a"] : ["abc", "a"], name);
  }
});

test("Undo brings back texts and their letters, also after the page starts again", () => {
  const app = started("abc");
  app.select(1);
  app.edit("abca", 4);
  app.undo();
  assert.deepEqual([app.state.text, app.state.selected], ["abc", 1]);
  app.edit("abcb", 4);
  app.toggle({ layer: 0, head: 1 });
  app.restart();
  assert.deepEqual([app.state.text, app.state.selected, app.muted.size], ["abc", 2, 0]);
  app.undo();
  assert.equal(app.state.text, "abcb");
  undone(app);
  app.undo();
  assert.equal(app.state.message, "Nothing to undo.");
});

test("a letter that replaces the rest of the text says so", () => {
  const app = started("abc");
  app.select(0);
  app.continueWith(0);
  assert.deepEqual([app.state.text, app.state.selected], ["aa", 1]);
  assert.match(app.state.message, /replaced the rest of the text/);
  assert.deepEqual(undone(app), ["abc"]);
});

test("unknown letters are left out and named together, and the caret stays behind its letter", () => {
  const app = started("ab");
  app.edit("xaxcb", 4, "typing");
  assert.deepEqual([app.state.text, app.state.selected], ["acb", 1]);
  for (const letter of "yz") app.edit(app.state.text + letter, 4, "typing");
  assert.equal(app.state.message, "This model has never seen “x”, “y”, “z”: left out.");
  app.say("another message");
  app.edit(`${app.state.text}é`, 4, "typing");
  assert.equal(app.state.message, "This model has never seen “é”: left out.");
  app.edit("uvwxyz", 0);
  assert.match(app.state.message, /at least one letter/);
  assert.equal(app.state.text, "acb");
  mock.timers.tick(10_000);
  assert.equal(app.state.message, "");
});

test("the text has a limit, and more stops the writing", () => {
  const app = started("a".repeat(MAX_LETTERS));
  answer(app, 0);
  app.write();
  assert.deepEqual([app.state.letters.length, app.writer.isWriting], [MAX_LETTERS, false]);
  assert.match(app.state.message, /limited to 4,000 letters/);
});

test("only the request on its way counts, and its error stops the writing", () => {
  const app = started("abc"), logits = new Float32Array([1, 2, 0]);
  const old = app.answers.sent?.id;
  app.select(1);
  reply(app, { id: old });
  assert.equal(app.isCurrent(), false);
  reply(app, { logits });
  assert.equal(app.answers.sent?.question.kind, "effect");
  reply(app, { logits });
  assert.deepEqual([app.fresh()?.effects.get(0)?.logits, app.fresh()?.whole], [logits, logits]);
  app.write();
  reply(app, { kind: "error", message: "no memory" });
  assert.deepEqual([app.look, app.writer.isWriting, app.state.message], [null, false, "no memory"]);
});

test("a look does not wait for what heads change, which is asked for again later", () => {
  const app = started("abc"), kinds = () => [app.answers.sent?.question.kind, app.answers.sent?.question.index];
  answer(app, 0);
  assert.deepEqual(kinds(), ["write", undefined]);
  reply(app, { ids: [1] });
  assert.deepEqual(kinds(), ["effect", 0]);
  app.toggle({ layer: 0, head: 1 });
  assert.deepEqual(kinds(), ["look", undefined]);
  reply(app);
  app.mute([]);
  assert.deepEqual(kinds(), ["effect", 0], "the look and the continuation are still known");
});

test("the newest request for details gets its answer, once, also if it is like the one before", () => {
  const app = started("abc"), used = [] as string[];
  answer(app, 0);
  reply(app); // the continuation
  for (const name of ["first", "second"]) app.askOnce("detail", { layer: 0, head: 0 }, () => used.push(name));
  while (app.answers.sent) reply(app);
  assert.deepEqual(used, ["second"]);
  app.askOnce("detail", { layer: 0, head: 0 }, () => used.push("third"));
  reply(app, { kind: "error", message: "no memory" });
  app.askOnce("detail", { layer: 0, head: 0 }, () => used.push("fourth"));
  reply(app);
  assert.deepEqual(used, ["second", "fourth"]);
});

test("what is pinned stays, whichever model the page shows", () => {
  const five = { ...payload({}, "ab"), film: [1, 2, 0] };
  five.models = Array.from({ length: 5 }, () => five.models[0]);
  const app = new App(five, LETTERS, () => {});
  app.moveTo(1);
  app.pin();
  app.moveTo(2);
  app.show(4);
  assert.equal(app.state.pinned, 1);
  app.pin();
  assert.equal(app.state.pinned, null);
});

test("the chosen head comes back after a look at a model without it", () => {
  const two = payload({}, "ab");
  two.models.push({ config: { family: "lstm" }, heads: [] });
  const app = new App({ ...two, head: [0, 1] }, LETTERS, () => {});
  assert.equal(app.state.shade, "head");
  app.show(1);
  assert.equal(app.state.head, null);
  app.show(0);
  assert.deepEqual(app.state.head, { layer: 0, head: 1 });
});

test("a chosen head that no model has is ignored", () => {
  for (const head of [[99, -1], [0, 2], [1, 0], [-1, 0]]) {
    const { state } = new App({ ...payload({}, "ab"), head }, LETTERS, () => {});
    assert.deepEqual([state.head, state.shade], [null, "surprise"]);
  }
});

test("a look is drawn at once, and answers about heads share a frame", (context) => {
  const app = started("ab"), kinds: unknown[] = [];
  app.isScheduled = false;
  let frames = 0;
  context.mock.method(globalThis, "requestAnimationFrame", (draw: FrameRequestCallback) => (frames++, draw(0), 0));
  answer(app, 0);
  assert.equal(frames, 1);
  for (; app.answers.sent; reply(app)) kinds.push(app.answers.sent.question.kind);
  assert.deepEqual([kinds, frames], [["write", "effect", "effect"], 1]);
  mock.timers.tick(200);
  assert.equal(frames, 2);
});
