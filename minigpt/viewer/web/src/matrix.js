/** "At all letters": the attention matrix of a head, in the stages of its computation. A click selects a letter. */

import { color, h, paint, percent } from "./dom.js";
import { openSheet } from "./sheet.js";

const STAGES = /** @type {const} */ ({ weights: "attention weights", scaled: "scores ÷ √D", scores: "scores q · k" });

/** @param {import("./app.js").App} app */
export function openMatrix(app) {
  const { head } = app.state;
  const { look } = app;
  if (!head || !look) return;
  app.askOnce({ kind: "matrix", ...head }, (reply) => {
    if (reply.kind !== "matrix") return app.set({ message: reply.message });
    const T = look.ids.length;
    const size = Math.max(1, Math.floor(Math.min(720, window.innerWidth - 80) / T));
    const canvas = h("canvas", {
      class: "matrix",
      role: "img",
      "aria-label": `Attention of head ${head.layer}·${head.head}: a row per letter, a column per letter attended to`,
    });
    const readout = h(
      "p.readout",
      { role: "status" },
      "Move over the matrix to read a weight. Click to select the letter of the row.",
    );
    const select = h(
      "select",
      { "aria-label": "Stage", onchange: () => draw() },
      ...Object.entries(STAGES).map(([value, name]) => h("option", { value }, name)),
    );
    const sheet = openSheet(
      `Head ${head.layer}·${head.head} at all letters`,
      h(
        "p",
        "Each row is a letter, from the top. Each column is a letter that it can attend to. " +
          "The future is hidden: that is the causal mask.",
      ),
      h("p.controls", h("label", "show ", select)),
      readout,
      h("div.scroll", { tabindex: "0", role: "region", "aria-label": "Matrix" }, canvas),
    );
    canvas.style.width = canvas.style.height = `${size * T}px`;

    const scale = Math.sqrt(app.model.config.n_embd / app.model.config.n_head);
    const value = (/** @type {number} */ row, /** @type {number} */ column) =>
      select.value === "weights"
        ? reply.weights[row * T + column]
        : reply.scores[row * T + column] / (select.value === "scaled" ? scale : 1);

    function draw() {
      const context = paint(canvas, size * T, size * T);
      let largest = 1e-12;
      for (let row = 0; row < T; row++)
        for (let column = 0; column <= row; column++) largest = Math.max(largest, Math.abs(value(row, column)));
      for (let row = 0; row < T; row++) {
        for (let column = 0; column <= row; column++) {
          const part = value(row, column) / largest;
          context.globalAlpha = select.value === "weights" ? Math.sqrt(Math.max(0, part)) : Math.abs(part);
          context.fillStyle = color(
            select.value === "weights" ? `--head-${(head?.head ?? 0) % 8}` : part > 0 ? "--warm" : "--cool",
          );
          context.fillRect(column * size, row * size, size, size);
        }
      }
    }
    /** @param {MouseEvent} event */
    const cell = (event) => [
      Math.min(T - 1, Math.floor(event.offsetY / size)),
      Math.min(T - 1, Math.floor(event.offsetX / size)),
    ];
    const symbol = (/** @type {number} */ t) => app.vocabulary.show(look.ids[t]);
    canvas.addEventListener("pointermove", (event) => {
      const [row, column] = cell(event);
      const shown =
        column > row
          ? "hidden by the mask"
          : select.value === "weights"
            ? percent(value(row, column))
            : value(row, column).toFixed(2);
      readout.textContent = `“${symbol(row)}” at ${row} attends to “${symbol(column)}” at ${column}: ${shown}`;
    });
    canvas.addEventListener("click", (event) => {
      const token = cell(event)[0] + look.from;
      sheet.close();
      app.select(app.state.letters.findIndex((letter) => letter.last >= token));
    });
    draw();
  });
}
