import assert from "node:assert/strict";
import { test } from "node:test";

import { argmax, softmax } from "../src/filters.js";
import { attentionAt, Transformer } from "../src/model.js";
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

test("an effect is the logits and the attention without one more head", async () => {
  const request = { ...LOOK, muted: [2], kind: "effect", layer: 0, head: 1 };
  const [{ logits, attention }] = await replies([MODEL], [request]);
  const other = finish(engine.run(LOOK.ids, { muted: [2, 1] }));
  assert.deepEqual(logits, other.logits(2).slice());
  assert.deepEqual(attention, attentionAt(other, 2, 2));
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
  const session = new Session([MODEL], () => {}), { runs } = session;
  const ids = () => [...runs].map(([key, run]) => [key, String(run.ids)]), all = String(LOOK.ids);
  finish(session.answer(LOOK as any));
  finish(session.answer({ ...LOOK, muted: [1] } as any));
  finish(session.answer({ ...LOOK, kind: "logits", ids: [4, 4], selected: 1 } as any));
  finish(session.answer({ ...LOOK, kind: "effect", layer: 0, head: 0 } as any));
  assert.deepEqual(ids(), [["0 ", all], ["0 1", all]]);
});

test("of a moment, a session keeps what looks need, and of models, the numbers of the last ones", async () => {
  const models = Array.from({ length: 9 }, () => MODEL), session = new Session(models, () => {});
  const moments = models.map((_, model) => ({ ...LOOK, kind: "moment", model }));
  const first = moments.map((moment) => finish(session.answer(moment as any)));
  assert.deepEqual([session.runs.size, session.moments.size, session.engines.size], [0, 9, 2]);
  assert.ok([...session.moments.values()].every(({ run }) => !run.x.length && !run.k.length));
  session.engine = () => assert.fail("a look at another letter needs no engine");
  const again = moments.map((moment) => finish(session.answer({ ...moment, kind: "look" } as any)));
  assert.deepEqual(again, first);
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

test("a detail follows one head from its query to its output", async () => {
  const [detail] = await replies([MODEL], [{ ...LOOK, kind: "detail", layer: 1, head: 1 }]);
  assertClose(detail.weights, softmax(detail.scores.map((score: number) => score / 2)));
  const best = argmax(detail.weights), value = (t: number) => run.v[1].slice(t * 8 + 4, t * 8 + 8);
  assert.deepEqual(detail.value, value(best));
  const sum = [0, 1, 2, 3].map((d) => [0, 1, 2].reduce((sum, t) => sum + detail.weights[t] * value(t)[d], 0));
  assertClose(detail.output, sum);
  assert.deepEqual(detail.logits, run.logits(2).slice());
  const [muted] = await replies([MODEL], [{ ...LOOK, muted: [3], kind: "detail", layer: 1, head: 1 }]);
  assert.deepEqual(muted.output, detail.output);
});

test("a matrix has the weights of all positions, and zeros above them", async () => {
  const request = { ...LOOK, layer: 1, head: 0 };
  const [matrix] = await replies([MODEL], [{ ...request, kind: "matrix" }]);
  const [detail] = await replies([MODEL], [{ ...request, kind: "detail" }]);
  assertClose(matrix.weights.slice(10, 15), [...detail.weights, 0, 0]);
});

test("an error is a reply, and the next request works", async () => {
  const models = [{ config: MODEL.config, weights: {} }, MODEL];
  const [error] = await replies(models, [LOOK]), [look] = await replies(models, [{ ...LOOK, model: 1 }]);
  assert.equal(error.kind, "error");
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
  const request = { ...LOOK, kind: "write", muted: [1], selected: 4 };
  const [{ ids }] = await replies([MODEL], [request]);
  assert.equal(ids.length, MODEL.config.context - LOOK.ids.length);
  const whole = finish(engine.run([...LOOK.ids, ...ids], { muted: [1] }));
  assert.deepEqual(ids, ids.map((_: number, i: number) => argmax(whole.logits(4 + i))));
  const [{ ids: other }] = await replies([MODEL], [{ ...request, selected: 2 }]);
  assert.deepEqual(other[0], argmax(run.logits(2)), "it begins after the selected token");
  const [{ ids: more }] = await replies([randomModel({ family: "lstm" })], [request]);
  assert.equal(more.length, 32);
});
