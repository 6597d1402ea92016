/** "At all letters": the attention matrix of a head, in the stages of its computation. */

import { argmax } from "./filters.js";
import { color, h, paint, percent, setText } from "./dom.js";
import { openSheet } from "./sheet.js";

const STAGES = /** @type {const} */ ({ weights: "attention weights", scaled: "scores ÷ √D", scores: "scores q · k" });
/** Pixels of a letter beside the matrix. Where cells are smaller, letters take turns in several lanes. */
const LETTER = 10;
/** Pixels of the window above and below the matrix. */
const AROUND = 240;
/** Pixels around a touch in which the largest value is read. */
const FINGER = 8;
/** @type {Record<string, number[]>} rows and columns that a key moves by */
const STEPS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

/** @param {import("./app.js").App} app */
export function openMatrix(app) {
  const { head } = app.state;
  if (!head) return;
  app.askOnce({ kind: "matrix", ...head }, (reply, { model, at, from, ids }) => {
    if (reply.kind !== "matrix") return app.say(reply.message);
    const T = ids.length;
    const room = Math.min(720, window.innerWidth - 130, window.innerHeight - AROUND);
    const size = Math.max(1, Math.floor(room / T));
    const lanes = size > 1 ? Math.ceil(LETTER / size) : 0;
    const edge = lanes * LETTER + 4;
    const label = `Attention of head ${head.layer}·${head.head}: a row per letter, a column per letter attended to`;
    const canvas = h("canvas.matrix", { role: "img", "aria-label": label });
    const mark = h("div.mark");
    const readout = h("p.readout", { role: "status" });
    const options = Object.entries(STAGES).map(([value, name]) => h("option", { value }, name));
    const select = h("select", { "aria-label": "Stage", onchange: draw }, ...options);
    const axes =
      "Each row is a letter, and each column a letter that it can attend to. The frame is the selected letter. " +
      "To read a cell, point at it, tap it, or use the arrow keys. A click of the mouse goes to its letter.";
    const go = h("button", { onclick: selectRow });
    const controls = h("p.controls", h("label", "show ", select), go);
    const scroll = h("div.scroll", { tabindex: "0", role: "region", "aria-label": "Matrix" }, canvas, mark);
    const sheet = openSheet(`Head ${head.layer}·${head.head} at all letters`, h("p", axes), controls, readout, scroll);
    canvas.style.width = canvas.style.height = `${edge + size * T}px`;
    const { n_embd, n_head } = app.payload.models[model].config;
    const scale = Math.sqrt(n_embd / n_head);
    const value = (/** @type {number} */ row, /** @type {number} */ column) =>
      select.value === "weights"
        ? reply.weights[row * T + column]
        : reply.scores[row * T + column] / (select.value === "scaled" ? scale : 1);
    const symbol = (/** @type {number} */ t) => app.vocabulary.show(ids[t]);

    function draw() {
      const context = paint(canvas, edge + size * T, edge + size * T);
      context.font = `${LETTER}px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace`;
      context.textAlign = "center";
      context.textBaseline = "middle";
      for (let t = 0; t < T && lanes; t++) {
        const lane = ((t % lanes) + 0.5) * LETTER;
        context.fillStyle = color(t === at ? "--ink" : "--soft");
        context.fillText(symbol(t), lane, edge + (t + 0.5) * size);
        context.fillText(symbol(t), edge + (t + 0.5) * size, lane);
      }
      context.translate(edge, edge);
      let largest = 1e-12;
      for (let row = 0; row < T; row++)
        for (let column = 0; column <= row; column++) largest = Math.max(largest, Math.abs(value(row, column)));
      const hues = [`--head-${(head?.head ?? 0) % 8}`, "--warm", "--cool"].map(color);
      for (let row = 0; row < T; row++) {
        for (let column = 0; column <= row; column++) {
          const part = value(row, column) / largest;
          context.globalAlpha = select.value === "weights" ? Math.sqrt(Math.max(0, part)) : Math.abs(part);
          context.fillStyle = hues[select.value === "weights" ? 0 : part > 0 ? 1 : 2];
          context.fillRect(column * size, row * size, size, size);
        }
      }
      context.globalAlpha = 1;
      context.strokeStyle = color("--ink");
      context.strokeRect(0, at * size - 0.5, T * size - 0.5, size + 1);
      read(...cell);
    }
    const inside = (/** @type {number} */ t) => Math.max(0, Math.min(T - 1, t));
    let cell = /** @type {[number, number]} */ ([at, argmax(reply.weights.subarray(at * T, at * T + at + 1))]);
    let isTouch = false;
    /** @param {number} row @param {number} column */
    function read(row, column) {
      cell = [row, column];
      const weight = value(row, column);
      const known = select.value === "weights" ? percent(weight) : weight.toFixed(2);
      const shown = column > row ? "hidden by the mask" : known;
      setText(readout, `“${symbol(row)}” at ${row} attends to “${symbol(column)}” at ${column}: ${shown}`);
      setText(go, `Go to “${symbol(row)}” at ${row}`);
      const [top, left] = cell.map((t) => `${edge + t * size}px`);
      Object.assign(mark.style, { top, left, width: `${size}px`, height: `${size}px` });
    }
    /** Read what is under the mouse, or the largest value under a finger. @param {PointerEvent} event */
    function point(event) {
      isTouch = event.pointerType !== "mouse";
      const [row, column] = [event.offsetY, event.offsetX].map((offset) => inside(Math.floor((offset - edge) / size)));
      let best = /** @type {[number, number]} */ ([row, column]);
      const around = isTouch ? Math.floor(FINGER / size) : 0;
      for (let r = inside(row - around); r <= inside(row + around); r++)
        for (let c = inside(column - around); c <= Math.min(r, column + around); c++)
          if (best[1] > best[0] || value(r, c) > value(...best)) best = [r, c];
      read(...best);
    }
    function selectRow() {
      const token = cell[0] + from;
      sheet.close();
      app.select(app.state.letters.findIndex((letter) => letter.last >= token));
    }
    canvas.addEventListener("pointerdown", point);
    canvas.addEventListener("pointermove", point);
    canvas.addEventListener("click", () => !isTouch && selectRow());
    scroll.addEventListener("keydown", (event) => {
      const step = STEPS[event.key];
      if (event.key === "Enter") selectRow();
      if (!step) return;
      event.preventDefault();
      read(inside(cell[0] + step[0]), inside(cell[1] + step[1]));
    });
    draw();
    scroll.focus();
  });
}
