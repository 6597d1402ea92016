import assert from "node:assert/strict";
import { test } from "node:test";

import { Transformer } from "../src/model.js";
import { decode, unpack } from "../src/weights.js";
import { CONFIG, encode, finish, packedModel, shapes } from "./models.js";

function assertDamaged(damage: (weights: Record<string, any>) => void, message: RegExp) {
  const model = packedModel();
  damage(model.weights);
  assert.throws(() => unpack(decode(model)), message);
}

test("float32 weights keep their bits", () => {
  const model = packedModel();
  const unpacked = unpack(decode(model));
  assert.deepEqual(Object.keys(unpacked).sort(), Object.keys(shapes(CONFIG, 5)).sort());
  const [first] = unpacked["norm.weight"];
  assert.equal(Buffer.from(model.weights["norm.weight"].data, "base64").readFloatLE(0), first);
});

test("an 8-bit weight is an integer times the scale of its row", () => {
  const model = packedModel(), integers = Int8Array.from({ length: 5 * 8 }, (_, i) => (i % 2 ? -127 : i));
  const scales = Float32Array.of(0.5, 1, 2, 4, 0);
  const packed = { shape: [5, 8], data: encode(integers), scale: encode(scales) };
  model.weights["token_embedding.weight"] = packed;
  const found = unpack(decode(model))["token_embedding.weight"];
  assert.deepEqual(Array.from(found), Array.from(integers, (n, i) => Math.fround(n * scales[Math.floor(i / 8)])));
});

test("damaged weights are named", () => {
  assertDamaged((weights) => (weights["norm.weight"].shape = [9]), /norm.weight has 32 bytes, not 36/);
  assertDamaged((weights) => (weights["norm.weight"].data = "AAAA"), /norm.weight has 3 bytes, not 32/);
  assertDamaged((weights) => (weights["norm.weight"].data = "not base64!"), /norm.weight is not base64/);
  assertDamaged((weights) => (weights["norm.weight"].scale = encode(new Float32Array(8))), /32 bytes, not 8/);
  const infinite = encode(new Float32Array(8).fill(Infinity));
  assertDamaged((weights) => (weights["norm.weight"].data = infinite), /norm.weight is not finite/);
});

test("an activation that the page does not know is named", () => {
  const model = packedModel({ activation: "sine" }), engine = new Transformer(model.config, unpack(decode(model)));
  assert.throws(() => finish(engine.run([0])), /this page does not know the activation sine/);
});
