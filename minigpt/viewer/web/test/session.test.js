import assert from "node:assert/strict";
import { test } from "node:test";

import { argmax, softmax } from "../src/filters.js";
import { Transformer } from "../src/model.js";
import { Session } from "../src/session.js";
import { unpack } from "../src/weights.js";
import { finish, randomModel, replies } from "./models.js";

const MODEL = randomModel();
const LOOK = { id: 1, model: 0, ids: [0, 1, 2, 3, 4], selected: 2, muted: [] };
const engine = new Transformer(MODEL.config, unpack(MODEL));
const run = finish(engine.run(LOOK.ids));

/** @param {ArrayLike<number>} found @param {ArrayLike<number>} expected */
function assertClose(found, expected) {
  assert.equal(found.length, expected.length);
  for (let i = 0; i < found.length; i++) assert.ok(Math.abs(found[i] - expected[i]) < 1e-5, `number ${i}`);
}

test("a look comes first, then the effect of each head from the last layer to the first", async () => {
  const asked = { ...LOOK, muted: [2] }, effects = { ...asked, id: 2, kind: "effects" };
  const found = await replies([MODEL], [effects, asked, effects], 2);
  const order = found.map(({ kind, layer, head }) => (kind === "effect" ? `${layer}.${head}` : kind));
  assert.deepEqual(order, ["look", "whole", "1.1", "0.0", "0.1", "done"]); // 1.0 is muted
  const expected = finish(engine.run(LOOK.ids, { muted: [2, 1] })).logits(2);
  assert.deepEqual(found[4].logits, expected.slice());
  assert.deepEqual(found[1].logits, run.logits(2).slice()); // with all heads on
  assert.deepEqual(found.map(({ id }) => id), [1, 2, 2, 2, 2, 2]);
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

test("a new look cancels the last one and its effects, but not details", async () => {
  const head = { ...LOOK, layer: 0, head: 1 };
  const details = [{ ...head, id: 2, kind: "detail" }, { ...head, id: 4, kind: "matrix" }];
  const effects = { ...LOOK, id: 5, kind: "effects" };
  const found = await replies([MODEL], [LOOK, effects, ...details, { ...LOOK, id: 3 }], 3);
  assert.deepEqual(found.map(({ id }) => id), [3, 2, 4]);
});

test("logits come after the look, which does not cancel them, also from a recurrent model", async () => {
  for (const model of [MODEL, randomModel({ family: "gru" })]) {
    const found = await replies([model], [{ ...LOOK, kind: "logits" }, { ...LOOK, id: 2 }]);
    assert.deepEqual(found.map(({ id, kind }) => `${id} ${kind}`), ["2 look", "1 logits"]);
    assert.deepEqual(found[1].logits, found[0].logits);
  }
});

test("work stops for other events, and a later look cancels effects in the middle", async () => {
  const large = randomModel({ n_layer: 4, n_embd: 64, context: 128 });
  const ids = Array.from({ length: 128 }, (_, i) => i % 5);
  const found = /** @type {any[]} */ ([]);
  let ticks = 0;
  const timer = setInterval(() => ticks++, 1);
  await new Promise((resolve) => {
    const session = new Session([large], (reply) => {
      found.push(reply);
      if (reply.id === 2) resolve(undefined);
    });
    session.send({ ...LOOK, kind: "effects", ids, selected: 127 });
    const wait = setInterval(() => {
      if (!found.some(({ kind }) => kind === "effect")) return;
      clearInterval(wait);
      session.send({ ...LOOK, id: 2, ids: ids.slice(0, 9), selected: 8 });
    }, 1);
  });
  clearInterval(timer);
  assert.ok(ticks > 3, `${ticks} other events`);
  const effects = found.filter(({ kind }) => kind === "effect").length;
  assert.ok(effects > 0 && effects < 8, `${effects} effects`);
});

test("a detail follows one head from its input to its output", async () => {
  const [detail] = await replies([MODEL], [{ ...LOOK, kind: "detail", layer: 1, head: 1 }]);
  assertClose(detail.scaled, detail.scores.map((/** @type {number} */ score) => score / 2));
  assertClose(detail.weights, softmax(detail.scaled));
  const [a, b, c] = detail.weights, values = Array.from(detail.values);
  assertClose(detail.output, [0, 1, 2, 3].map((d) => a * values[d] + b * values[4 + d] + c * values[8 + d]));
  assertClose(detail.embedding, engine.weights["token_embedding.weight"].slice(16, 24));
  assertClose(detail.residual[0], detail.embedding);
  assertClose(detail.residual[1], detail.input);
  assert.equal(detail.position, null);
  assert.equal(detail.residual.length, 3);
  assert.deepEqual(detail.logits, run.logits(2).slice());
  const [muted] = await replies([MODEL], [{ ...LOOK, muted: [3], kind: "detail", layer: 1, head: 1 }]);
  assert.deepEqual(muted.output, detail.output);
  assert.ok(muted.written.every((/** @type {number} */ value) => value === 0));
  assert.ok(detail.written.some((/** @type {number} */ value) => value !== 0));
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

test("errors are replies, and the next request works", async () => {
  const models = [{ config: MODEL.config, weights: {} }, MODEL];
  const found = await replies(models, [LOOK, { ...LOOK, id: 2, model: 1 }]);
  assert.match(found[0].message, /token_embedding.weight is missing/);
  assert.deepEqual(found.map(({ kind }) => kind), ["error", "look"]);
});

test("a recurrent model has no heads, and no limit of its text", async () => {
  const model = randomModel({ family: "gru", context: 4 });
  const [look, done] = await replies([model], [LOOK, { ...LOOK, kind: "effects" }]);
  assert.equal(look.logits.length, 5);
  assert.equal(look.attention.length, 0);
  assert.deepEqual(done, { id: 1, kind: "done", model: 0 });
  const [error] = await replies([model], [{ ...LOOK, kind: "detail", layer: 0, head: 0 }]);
  assert.equal(error.message, "this model has no heads");
});

test("a continuation is the most likely token each time, up to the end of the context", async () => {
  const request = { ...LOOK, kind: "write", muted: [1] };
  const [{ ids }] = await replies([MODEL], [request]);
  assert.equal(ids.length, MODEL.config.context - LOOK.ids.length);
  const whole = finish(engine.run([...LOOK.ids, ...ids], { muted: [1] }));
  assert.deepEqual(ids, ids.map((/** @type {number} */ _, /** @type {number} */ i) => argmax(whole.logits(4 + i))));
  const [{ ids: more }] = await replies([randomModel({ family: "lstm" })], [request]);
  assert.equal(more.length, 32);
});

test("a continuation comes after the look", async () => {
  const found = await replies([MODEL], [LOOK, { ...LOOK, id: 2, kind: "write" }], 2);
  assert.deepEqual(found.map(({ kind }) => kind), ["look", "write"]);
});

test("a film comes after effects, in the order of its requests, until a new look", async () => {
  const film = [2, 1].map((model) => ({ ...LOOK, id: model + 10, kind: "film", model }));
  const found = await replies([MODEL, MODEL, MODEL], [...film, LOOK, ...film, { ...LOOK, id: 5, kind: "effects" }], 4);
  const ids = found.map(({ id }) => id);
  assert.deepEqual([...new Set(ids)], [1, 5, 12, 11]);
  assert.deepEqual(found.slice(-2).map(({ kind, model }) => [kind, model]), [["look", 2], ["look", 1]]);
});
