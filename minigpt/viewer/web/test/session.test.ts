import assert from "node:assert/strict";
import { test } from "node:test";

import { argmax, softmax } from "../src/filters.js";
import { Transformer } from "../src/model.js";
import { Session } from "../src/session.js";
import { unpack } from "../src/weights.js";
import { finish, randomModel, replies } from "./models.js";

const MODEL = randomModel();
const LOOK = { id: 1, kind: "look", model: 0, ids: [0, 1, 2, 3, 4], selected: 2, muted: [] };
const engine = new Transformer(MODEL.config, unpack(MODEL));
const run = finish(engine.run(LOOK.ids));

function assertClose(found: ArrayLike<number>, expected: ArrayLike<number>) {
  assert.equal(found.length, expected.length);
  for (let i = 0; i < found.length; i++) assert.ok(Math.abs(found[i] - expected[i]) < 1e-5, `number ${i}`);
}

test("an effect is the logits without one more head", async () => {
  const [{ logits }] = await replies([MODEL], [{ ...LOOK, muted: [2], kind: "effect", layer: 0, head: 1 }]);
  assert.deepEqual(logits, finish(engine.run(LOOK.ids, { muted: [2, 1] })).logits(2).slice());
});

test("a longer text with other heads off reuses what is still right", () => {
  const ids = [...LOOK.ids, 0, 1, 2, 3, 4, 0];
  const reused = finish(engine.run(ids, { muted: [0], previous: run }));
  assert.deepEqual(reused.allLogits, finish(engine.run(ids, { muted: [0] })).allLogits);
});

test("a look has logits, attention, and the probability of each token", async () => {
  const [look] = await replies([MODEL], [LOOK]);
  assert.deepEqual(look.logits, run.logits(2).slice());
  assert.equal(look.logits.buffer.byteLength, 4 * 5); // a view would send the numbers of all positions to the page
  assert.ok(Number.isNaN(look.surprise[0]));
  assertClose(look.surprise.slice(1), [1, 2, 3, 4].map((t) => softmax(run.logits(t - 1))[t]));
  assert.equal(look.attention.length, 2 * 2 * 3);
  for (let row = 0; row < 4; row++) {
    const [a, b, c] = look.attention.slice(3 * row);
    assertClose([a + b + c], [1]);
  }
});

test("a request replaces the one before, which has no answer then", async () => {
  const found = await replies([MODEL], [LOOK, { ...LOOK, id: 2, kind: "logits" }, { ...LOOK, id: 3 }], 1);
  assert.deepEqual(found.map(({ id, kind }) => `${id} ${kind}`), ["3 look"]);
});

test("runs with and without heads stay apart, and a check of other texts leaves them", async () => {
  const session = new Session([MODEL], () => {}), { entries: [entry] } = session;
  finish(session.answer(LOOK as any));
  finish(session.answer({ ...LOOK, muted: [1] } as any));
  finish(session.answer({ ...LOOK, kind: "logits", ids: [4, 4], selected: 1 } as any));
  finish(session.answer({ ...LOOK, kind: "effect", layer: 0, head: 0 } as any));
  assert.deepEqual(entry.whole.ids, LOOK.ids);
  assert.deepEqual([...entry.muted.muted], [1]);
  assert.equal(entry.weights, undefined, "the engine has unpacked them");
});

test("work stops for other events, and a later look replaces it in the middle", async () => {
  const large = randomModel({ n_layer: 4, n_embd: 64, context: 128 });
  const ids = Array.from({ length: 128 }, (_, i) => i % 5);
  const found: any[] = [];
  await new Promise((resolve) => {
    const session = new Session([large], (reply) => resolve(found.push(reply)));
    session.send({ ...LOOK, ids, selected: 127 } as any);
    setTimeout(() => session.send({ ...LOOK, id: 2, ids: ids.slice(0, 9), selected: 8 } as any), 1);
  });
  assert.deepEqual(found.map(({ id }) => id), [2]);
});

test("a detail follows one head from its input to its output", async () => {
  const [detail] = await replies([MODEL], [{ ...LOOK, kind: "detail", layer: 1, head: 1 }]);
  assertClose(detail.scaled, detail.scores.map((score: number) => score / 2));
  assertClose(detail.weights, softmax(detail.scaled));
  const [a, b, c] = detail.weights, values: number[] = Array.from(detail.values);
  assertClose(detail.output, [0, 1, 2, 3].map((d) => a * values[d] + b * values[4 + d] + c * values[8 + d]));
  assertClose(detail.embedding, engine.weights["token_embedding.weight"].slice(16, 24));
  assertClose(detail.residual[0], detail.embedding);
  assertClose(detail.residual[1], detail.input);
  assert.equal(detail.position, null);
  assert.equal(detail.residual.length, 3);
  assert.deepEqual(detail.logits, run.logits(2).slice());
  const [muted] = await replies([MODEL], [{ ...LOOK, muted: [3], kind: "detail", layer: 1, head: 1 }]);
  assert.deepEqual(muted.output, detail.output);
  assert.ok(muted.written.every((value: number) => value === 0));
  assert.ok(detail.written.some((value: number) => value !== 0));
});

test("what a head writes is what muting it takes away", async () => {
  // with one layer whose MLP writes nothing, the residual stream after it is the input plus what the heads write
  const model = randomModel({ n_layer: 1, bias: true });
  model.weights["blocks.0.mlp.down.weight"].data = Buffer.alloc(8 * 32 * 4).toString("base64");
  const request = { ...LOOK, kind: "detail", layer: 0, head: 1 };
  const [with1] = await replies([model], [request]), [without1] = await replies([model], [{ ...request, muted: [1] }]);
  assertClose(with1.residual[1], Array.from(with1.written, (value, i) => value + without1.residual[1][i]));
});

test("a matrix has unmasked products and masked weights", async () => {
  const request = { ...LOOK, layer: 1, head: 0 };
  const [matrix] = await replies([MODEL], [{ ...request, kind: "matrix" }]);
  const [detail] = await replies([MODEL], [{ ...request, kind: "detail" }]);
  assertClose(matrix.scores.slice(10, 13), detail.scores);
  assert.notEqual(matrix.scores[13], 0);
  assertClose(matrix.weights.slice(10, 15), [...detail.weights, 0, 0]);
});

test("an error is a reply, and the next request works", async () => {
  const models = [{ config: MODEL.config, weights: {} }, MODEL];
  const [error] = await replies(models, [LOOK]), [look] = await replies(models, [{ ...LOOK, model: 1 }]);
  assert.match(error.message, /token_embedding.weight is missing/);
  assert.equal(look.kind, "look");
});

test("a recurrent model has no heads, and no limit of its text", async () => {
  const model = randomModel({ family: "gru", context: 4 });
  const [look] = await replies([model], [LOOK]);
  assert.equal(look.logits.length, 5);
  assert.equal(look.attention.length, 0);
  const [error] = await replies([model], [{ ...LOOK, kind: "detail", layer: 0, head: 0 }]);
  assert.equal(error.message, "this model has no heads");
});

test("a continuation is the most likely token each time, up to the end of the context", async () => {
  const request = { ...LOOK, kind: "write", muted: [1] };
  const [{ ids }] = await replies([MODEL], [request]);
  assert.equal(ids.length, MODEL.config.context - LOOK.ids.length);
  const whole = finish(engine.run([...LOOK.ids, ...ids], { muted: [1] }));
  assert.deepEqual(ids, ids.map((_: number, i: number) => argmax(whole.logits(4 + i))));
  const [{ ids: more }] = await replies([randomModel({ family: "lstm" })], [request]);
  assert.equal(more.length, 32);
});
