/** "At all letters": the attention matrix of a head, beside the text. */

import { argmax } from "./filters.js";
import { color, h, isTouch, openSheet, paint, percent, setText } from "./dom.js";
import { drawLetter } from "./text.js";
import type { Position } from "./answers.js";
import type { App, Head } from "./app.js";
import type { Letter } from "./letters.js";

/** The largest side length of the matrix, in pixels. */
const SIDE = 560;
/** Pixels of the window above and below the matrix. */
const AROUND = 240;
/** Rows and columns that a key moves by. */
const MOVES: Record<string, [number, number]> = {
  ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1],
};
const AXES = "Each row is a letter that attends, and each column is a letter that it attends to. ";
const HOW = "Point at a cell to read it, or use the arrow keys. A click goes to its letter.";

export function openMatrix(app: App) {
  const { head, letters } = app.state; // those that the answer is about
  if (head) app.askOnce("matrix", head, ({ weights }, position) => showMatrix(app, head, weights, position, letters));
}

/** @param weights (T, T) @param position what was asked about @param all the letters of the text then */
function showMatrix(app: App, head: Head, weights: Float32Array, position: Position, all: Letter[]) {
  const { selected, from, ids } = position, T = ids.length;
  const side = Math.min(SIDE, window.innerWidth - 100, window.innerHeight - AROUND);
  const size = Math.max(1, Math.floor((side / T) * devicePixelRatio) / devicePixelRatio); // sharp edges
  const name = `${head.layer}·${head.head}`, hue = `--head-${head.head % 8}`;
  const label = `Attention of head ${name}: a row per letter, a column per letter attended to`;
  const canvas = h("canvas.matrix", { role: "img", "aria-label": label });
  const across = h("div.across"), down = h("div.down"), readout = h("p.readout", { role: "status" });
  const go = h("button", { onclick: selectRow });
  const square = h("div.square", canvas, across, down);
  const letters = all.filter(({ first, last }) => first >= from && last < from + T);
  const spans = letters.map(() => h("span")), text = h("div.drawn", ...spans);
  const area = h("div.scroll", { tabindex: "0", role: "region", "aria-label": "Matrix" }, square, text);
  const intro = h("p", AXES, isTouch() ? "Tap a cell to read it." : HOW);
  const sheet = openSheet(`Head ${name} at all letters`, intro, h("p.controls", go, readout), area);
  for (const part of [square, text]) part.style.setProperty("--hue", `var(${hue})`);
  let row = 0, column = 0, isByTouch = false;

  function read(nextRow: number, nextColumn: number) {
    [row, column] = [nextRow, nextColumn].map((t) => Math.max(0, Math.min(T - 1, t)));
    const [query, key] = [row, column].map((t) => `“${app.vocabulary.show(ids[t])}” at ${t}`);
    const share = column > row ? "hidden by the mask" : percent(weights[row * T + column]);
    setText(readout, `${query} attends to ${key}: ${share}`);
    setText(go, `Go to ${query}`);
    Object.assign(across.style, { top: `${row * size}px`, height: `${size}px` });
    Object.assign(down.style, { left: `${column * size}px`, width: `${size}px` });
    const places = Object.entries({ selected: row + from, pointed: column + from });
    letters.forEach((letter, i) => {
      const here = places.filter(([, token]) => letter.first <= token && token <= letter.last);
      drawLetter(spans[i], letter, 0, here.map(([place]) => place));
    });
  }

  function point({ pointerType, offsetX, offsetY }: PointerEvent) {
    isByTouch = pointerType !== "mouse";
    read(Math.floor(offsetY / size), Math.floor(offsetX / size));
  }

  function selectRow() {
    sheet.close();
    app.select(app.state.letters.findIndex(({ last }) => last >= row + from));
  }

  canvas.addEventListener("pointerdown", point);
  canvas.addEventListener("pointermove", point);
  canvas.addEventListener("click", () => isByTouch || selectRow());
  area.addEventListener("keydown", (event) => {
    if (event.key === "Enter") selectRow();
    const move = MOVES[event.key];
    if (!move) return;
    event.preventDefault();
    read(row + move[0], column + move[1]);
  });
  canvas.style.width = canvas.style.height = `${size * T}px`;
  const context = paint(canvas, size * T, size * T);
  context.fillStyle = color(hue);
  weights.forEach((share, i) => {
    context.globalAlpha = Math.sqrt(share);
    context.fillRect((i % T) * size, Math.floor(i / T) * size, size, size);
  });
  read(selected, argmax(weights.subarray(selected * T, selected * T + selected + 1)));
  area.focus();
}
