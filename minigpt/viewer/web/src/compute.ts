/** "Compute this letter": one head's arithmetic with the model's real numbers, from the letter to the logits. */

import { descending, softmax } from "./filters.js";
import { glyph } from "./letters.js";
import { color, h, paint, percent, table, term } from "./dom.js";
import { openSheet } from "./sheet.js";
import type { Position } from "./answers.js";
import type { App } from "./app.js";
import type { DetailAnswer } from "./session.js";
import type { Child } from "./dom.js";

/** Letters to list, the most attended ones. */
const ROWS = 12;

export function openCompute(app: App) {
  const { head, letters, selected } = app.state;
  if (!head) return;
  const letter = glyph(letters[selected].text);
  app.askOnce("detail", head, (reply, position) => {
    const name = `${head.layer}·${head.head}`;
    const isOff = position.muted.includes(app.index(head));
    const title = `How head ${name}${isOff ? " (switched off)" : ""} computes at “${letter}”`;
    openSheet(title, ...steps(app, reply, position, head.layer, letter, isOff));
    for (const draw of drawings.splice(0)) draw();
  });
}

/** canvases have a width only once they are shown */
const drawings: (() => void)[] = [];

/** @param position what was asked about @param isOff whether the head is switched off */
function steps(app: App, reply: DetailAnswer, position: Position, layer: number, letter: string, isOff: boolean) {
  const { n_embd: C, n_head: H } = app.payload.models[position.model].config;
  const D = C / H;
  const symbol = (t: number) => app.vocabulary.show(position.ids[t]);
  const part = (rows: Float32Array, t: number) => rows.subarray(t * D, (t + 1) * D);
  const [largest] = descending(reply.weights);
  const shares = descending(reply.weights)
    .slice(0, ROWS)
    .sort((a, b) => a - b)
    .map((t) => [
      String(t),
      h(t === largest ? "b" : "span", symbol(t)),
      reply.scores[t].toFixed(2),
      reply.scaled[t].toFixed(2),
      percent(reply.weights[t]),
      vector(part(reply.keys, t), true),
    ]);
  const probabilities = softmax(reply.logits);
  const best = descending(probabilities)
    .slice(0, 5)
    .map((id) => [app.vocabulary.show(id), reply.logits[id].toFixed(2), percent(probabilities[id])]);
  const scroll = { class: "scroll", tabindex: "0", role: "region", "aria-label": "Scores" };
  const rest = shares.length < reply.weights.length ? `The ${ROWS} largest shares of ${reply.weights.length}.` : "";
  return [
    step(
      [`“${letter}” becomes a vector`],
      `The model looks up ${C} numbers for the letter${reply.position ? ", and adds those of the position" : ""}.`,
      vector(reply.embedding),
      reply.position && vector(reply.position),
    ),
    step(
      [layer ? `${layer} layer${layer > 1 ? "s" : ""} later` : "It enters layer 0"],
      `${layer ? "Earlier layers have added what they found. " : ""}This is what the head receives, normalized:`,
      vector(reply.normed),
    ),
    step(
      ["The ", term("query"), " meets the ", term("key", "keys")],
      `The head turns the vector into a query of ${D} numbers. Every letter so far has a key. Their product ` +
        `is a score (÷ √${D} = ${Math.sqrt(D).toFixed(2)}). Softmax turns scores into shares that sum to 100%.`,
      vector(reply.q),
      h("div", scroll, table("scores shares", ["position", "letter", "q · k", `÷ √${D}`, "softmax", "key"], shares)),
      h("p.note", rest),
    ),
    step(
      ["It copies ", term("value", "values")],
      `Each letter has a value. The head adds them, each times its share. Most comes from “${symbol(largest)}”:`,
      vector(part(reply.values, largest)),
      h("p", "The sum:"),
      vector(reply.output),
    ),
    step(
      ["It writes its finding down"],
      isOff
        ? "This head is switched off, so it adds nothing to the vector of the letter."
        : `A matrix turns the sum into ${C} numbers, which are added to the vector of the letter.`,
      !isOff && vector(reply.written),
    ),
    step(
      ["After each layer"],
      "The vector of the letter, before the first layer and after each one:",
      ...reply.residual.map((x) => vector(x)),
    ),
    step(
      [term("logits", "Logits"), " and probabilities"],
      "The last vector, normalized, is multiplied with that of every letter. Softmax turns logits into " +
        "probabilities, here at temperature 1: the pale bars of the page.",
      table("scores", ["letter", "logit", "probability"], best),
    ),
  ];
}

function step(title: Child[], text: string, ...content: Child[]) {
  return h("section", h("h3", ...title), h("p", text), ...content);
}

/** A vector as a strip of colors: warm above zero, cool below. Its numbers appear on hover, and in a list. */
function vector(values: Float32Array, isSmall: boolean = false) {
  const canvas = h("canvas", { class: isSmall ? "vector small" : "vector", "aria-hidden": "true" });
  const largest = values.reduce((most, value) => Math.max(most, Math.abs(value)), 1e-12);
  const height = isSmall ? 12 : 26;
  drawings.push(() => {
    const width = canvas.clientWidth;
    const context = paint(canvas, width, height);
    const [warm, cool] = ["--warm", "--cool"].map((name) => color(canvas, name));
    values.forEach((value, i) => {
      context.globalAlpha = Math.abs(value) / largest;
      context.fillStyle = value > 0 ? warm : cool;
      context.fillRect((i * width) / values.length, 0, width / values.length + 0.5, height);
    });
  });
  if (isSmall) return canvas;
  const readout = h("output.readout", `${values.length} numbers, the largest ${largest.toPrecision(3)}`);
  canvas.addEventListener("pointermove", ({ offsetX }) => {
    const i = Math.floor((offsetX / canvas.clientWidth) * values.length);
    if (i in values) readout.textContent = `number ${i}: ${values[i].toFixed(4)}`;
  });
  const list = () => h("code", Array.from(values, (value) => value.toFixed(3)).join("  "));
  const numbers = h("details.numbers", h("summary", readout));
  numbers.addEventListener("toggle", () => numbers.append(list()), { once: true });
  return h("div", canvas, numbers);
}
