/** "Compute this letter": one head's arithmetic with the model's real numbers, from its query to the probabilities. */

import { argmax, descending, softmax } from "./filters.js";
import { glyph } from "./letters.js";
import { color, h, openSheet, paint, percent, table, term } from "./dom.js";
import type { Position } from "./answers.js";
import type { App } from "./app.js";
import type { Child } from "./dom.js";
import type { DetailAnswer } from "./session.js";

/** Letters to list, the most attended ones. */
const ROWS = 12;

export function openCompute(app: App) {
  const { head, letters, selected } = app.state;
  if (!head) return;
  const letter = glyph(letters[selected].text);
  app.askOnce("detail", head, (reply, position) => {
    const isOff = position.muted.includes(app.index(head));
    const title = `How head ${head.layer}·${head.head}${isOff ? " (switched off)" : ""} computes at “${letter}”`;
    openSheet(title, ...steps(app, reply, position, isOff));
    for (const draw of drawings.splice(0)) draw();
  });
}

/** Canvases have a width only once they are shown. */
const drawings: (() => void)[] = [];

/** @param position what was asked about @param isOff whether the head is switched off */
function steps(app: App, reply: DetailAnswer, position: Position, isOff: boolean) {
  const { n_embd: C, n_head: H } = app.payload.models[position.model].config, D = C / H, root = Math.sqrt(D);
  const symbol = (t: number) => app.vocabulary.show(position.ids[t]), largest = argmax(reply.weights);
  const best = descending(reply.weights).slice(0, ROWS).sort((a, b) => a - b);
  const shares = best.map((t) => [
    String(t), h(t === largest ? "b" : "span", symbol(t)), reply.scores[t].toFixed(2),
    (reply.scores[t] / root).toFixed(2), percent(reply.weights[t]),
  ]);
  const probabilities = softmax(reply.logits);
  const likeliest = descending(probabilities).slice(0, 5);
  const rows = likeliest.map((id) => {
    return [app.vocabulary.show(id), reply.logits[id].toFixed(2), percent(probabilities[id])];
  });
  const scroll = { class: "scroll", tabindex: "0", role: "region", "aria-label": "Scores" };
  const rest = shares.length < reply.weights.length ? `The ${ROWS} largest shares of ${reply.weights.length}.` : "";
  return [
    step(
      ["The ", term("query"), " meets the ", term("key", "keys")],
      `Earlier layers have given each letter a vector of ${C} numbers. The head turns that of this letter into a ` +
        `query of ${D} numbers. Every letter so far has a key. Their product is a score (÷ √${D} = ` +
        `${root.toFixed(2)}). Softmax turns scores into shares that sum to 100%.`,
      vector(reply.q),
      h("div", scroll, table("scores shares", ["position", "letter", "q · k", `÷ √${D}`, "softmax"], shares)),
      h("p.note", rest),
    ),
    step(
      ["It copies ", term("value", "values")],
      `Each letter has a value. The head adds the values, each times its share. The largest share is that of ` +
        `“${symbol(largest)}”: here is its value, and below it the sum.`,
      vector(reply.value),
      vector(reply.output),
    ),
    step(
      [term("logits", "Logits"), " and probabilities"],
      `${isOff ? "This head is off, so it adds nothing." : "A matrix adds this sum to the vector of the letter."} ` +
        "After the last layer, this vector, normalized, is multiplied with that of every letter of the vocabulary. " +
        "Softmax turns these logits into probabilities, here at temperature 1: the pale bars of the page.",
      table("scores", ["letter", "logit", "probability"], rows),
    ),
  ];
}

function step(title: Child[], text: string, ...content: Child[]) {
  return h("section", h("h3", ...title), h("p", text), ...content);
}

/** A vector as a strip of colors: warm above zero, cool below. Its numbers appear on hover. */
function vector(values: Float32Array) {
  const canvas = h("canvas.vector", { "aria-hidden": "true" });
  const largest = values.reduce((most, value) => Math.max(most, Math.abs(value)), 1e-12);
  drawings.push(() => {
    const width = canvas.clientWidth, context = paint(canvas, width, 26);
    values.forEach((value, i) => {
      context.globalAlpha = Math.abs(value) / largest;
      context.fillStyle = color(value > 0 ? "--warm" : "--cool");
      context.fillRect((i * width) / values.length, 0, width / values.length + 0.5, 26);
    });
  });
  const readout = h("p.readout", `${values.length} numbers, the largest ${largest.toPrecision(3)}`);
  canvas.addEventListener("pointermove", ({ offsetX }) => {
    const i = Math.floor((offsetX / canvas.clientWidth) * values.length);
    if (i in values) readout.textContent = `number ${i}: ${values[i].toFixed(4)}`;
  });
  return h("div", canvas, readout);
}
