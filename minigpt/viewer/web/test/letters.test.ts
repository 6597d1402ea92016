import assert from "node:assert/strict";
import { test } from "node:test";

import { fromField, toField, Vocabulary } from "../src/letters.js";

test("bytes become text, and the text the same bytes", () => {
  const bytes = new Vocabulary("byte"), ids = [0xef, 0xbb, 0xbf, 0x61, 0x0d, 0x0a, 0xe2, 0x80, 0x94];
  assert.equal(bytes.decode(ids), "\ufeffa\r\n—");
  assert.deepEqual(bytes.encode(bytes.decode(ids)).ids, ids);
});

test("a text field keeps the carriage returns of a text, whatever is typed", () => {
  const text = "a\r\nb\r␍c";
  assert.equal(toField(text), "a␍\nb␍␍c");
  assert.equal(fromField(toField(text), text), text);
  for (const at of [0, 1, 2, 3, 5, 6, 7]) {
    const [before, after] = [text.slice(0, at), text.slice(at)];
    assert.equal(fromField(`${toField(before)}x${toField(after)}`, text), `${before}x${after}`);
  }
  assert.equal(fromField("a␍\nc", text), "a\r\nc");
  assert.equal(fromField("", text), "");
});
