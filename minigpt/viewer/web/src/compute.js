/** "Compute this letter": one head's arithmetic with the model's real numbers, from the letter to the logits. */

import { softmax } from "./filters.js";
import { glyph } from "./letters.js";
import { color, h, paint, percent, table, term } from "./dom.js";
import { openSheet } from "./sheet.js";

const ROWS = 12;
/** Letters to list, the most attended ones. */

/** @param {import("./app.js").App} app */
export function openCompute(app) {
  const { head, letters, selected } = app.state;
  if (!head) return;
  const letter = glyph(letters[selected].text);
  app.askOnce({ kind: "detail", ...head }, (reply) => {
    if (reply.kind !== "detail") return app.set({ message: reply.message });
    const name = `${head.layer}·${head.head}`;
    openSheet(`How head ${name} computes at “${letter}”`, ...steps(app, reply, head, letter));
    for (const draw of drawings.splice(0)) draw();
  });
}

/** @type {(() => void)[]} canvases have a width only once they are shown */
const drawings = [];

/**
 * @param {import("./app.js").App} app @param {any} reply
 * @param {import("./app.js").Head} head @param {string} letter
 */
function steps(app, reply, head, letter) {
  const { look } = app;
  const { config } = app.model;
  const D = config.n_embd / config.n_head;
  const order = Array.from(reply.weights.keys())
    .sort((a, b) => reply.weights[b] - reply.weights[a])
    .slice(0, ROWS)
    .sort((a, b) => a - b);
  const symbol = (/** @type {number} */ t) => (look ? app.vocabulary.show(look.ids[t]) : "");
  const probabilities = softmax(reply.logits);
  const best = Array.from(probabilities.keys())
    .sort((a, b) => probabilities[b] - probabilities[a])
    .slice(0, 5);
  const largest = order.reduce((a, b) => (reply.weights[b] > reply.weights[a] ? b : a));
  return [
    step(
      1,
      `“${letter}” becomes a vector`,
      `The model looks up ${config.n_embd} numbers for the letter.`,
      vector(reply.embedding),
      reply.position && h("p", "It adds the vector of the position:"),
      reply.position && vector(reply.position),
    ),
    step(
      2,
      head.layer ? `${head.layer} layer${head.layer > 1 ? "s" : ""} later` : "It enters layer 0",
      "Earlier layers have added what they found. This is what the head receives, normalized:",
      vector(reply.normed),
    ),
    h(
      "section",
      h("h3", "3. The ", term("query"), " meets the ", term("key", "keys")),
      h(
        "p",
        `The head turns the vector into a query of ${D} numbers. Every letter so far has a key. Their product is a ` +
          `score, divided by √${D} = ${Math.sqrt(D).toFixed(2)}; softmax turns scores into shares that sum to 100%.`,
      ),
      vector(reply.q),
      h(
        "div",
        { class: "scroll", tabindex: "0", role: "region", "aria-label": "Scores" },
        table(
          "scores",
          ["position", "letter", "q · k", `÷ √${D}`, "softmax", "key"],
          order.map((t) => [
            String(t),
            h(t === largest ? "b" : "span", symbol(t)),
            reply.scores[t].toFixed(2),
            reply.scaled[t].toFixed(2),
            percent(reply.weights[t]),
            vector(reply.keys.subarray(t * D, (t + 1) * D), true),
          ]),
        ),
      ),
      h(
        "p",
        { class: "note" },
        order.length < reply.weights.length
          ? `The ${order.length} letters with the largest shares, of ${reply.weights.length}.`
          : "",
      ),
    ),
    h(
      "section",
      h("h3", "4. It copies ", term("value", "values")),
      h(
        "p",
        "Each letter also has a value. The head adds the values, each times its share. " +
          `Most comes from “${symbol(largest)}”:`,
      ),
      vector(reply.values.subarray(largest * D, (largest + 1) * D)),
      h("p", "The sum:"),
      vector(reply.output),
    ),
    step(
      5,
      "It writes its finding down",
      `A matrix turns the sum into ${config.n_embd} numbers, which are added to the vector of the letter.`,
      vector(reply.written),
    ),
    step(
      6,
      "After each layer",
      "The vector of the letter, before the first layer and after each one:",
      ...reply.residual.map((/** @type {Float32Array} */ x) => vector(x)),
    ),
    h(
      "section",
      h("h3", "7. ", term("logits", "Logits"), " and probabilities"),
      h(
        "p",
        "The last vector, normalized, is multiplied with the vector of every letter of the vocabulary. " +
          "Softmax turns the logits into probabilities.",
      ),
      table(
        "scores",
        ["letter", "logit", "probability"],
        best.map((id) => [app.vocabulary.show(id), reply.logits[id].toFixed(2), percent(probabilities[id])]),
      ),
    ),
  ];
}

/** @param {number} number @param {string} title @param {string} text @param {...(Node | null)} content */
function step(number, title, text, ...content) {
  return h("section", h("h3", `${number}. ${title}`), h("p", text), ...content);
}

/**
 * A vector as a strip of colors: warm above zero, cool below. Its numbers appear on hover, and in a list.
 * @param {Float32Array} values @param {boolean} [isSmall]
 */
function vector(values, isSmall = false) {
  const canvas = h("canvas", { class: isSmall ? "vector small" : "vector", "aria-hidden": "true" });
  const largest = values.reduce((most, value) => Math.max(most, Math.abs(value)), 1e-12);
  const height = isSmall ? 12 : 26;
  drawings.push(() => {
    const width = canvas.clientWidth;
    const context = paint(canvas, width, height);
    values.forEach((value, i) => {
      context.globalAlpha = Math.abs(value) / largest;
      context.fillStyle = color(value > 0 ? "--warm" : "--cool");
      context.fillRect((i * width) / values.length, 0, width / values.length + 0.5, height);
    });
  });
  if (isSmall) return canvas;
  const readout = h("output", { class: "readout" }, `${values.length} numbers, the largest ${largest.toPrecision(3)}`);
  canvas.addEventListener("pointermove", (event) => {
    const i = Math.min(
      values.length - 1,
      Math.max(0, Math.floor((event.offsetX / canvas.clientWidth) * values.length)),
    );
    readout.textContent = `number ${i}: ${values[i].toFixed(4)}`;
  });
  const numbers = h("details", { class: "numbers" }, h("summary", readout));
  numbers.addEventListener(
    "toggle",
    () => numbers.append(h("code", Array.from(values, (value) => value.toFixed(3)).join("  "))),
    { once: true },
  );
  return h("div", canvas, numbers);
}
