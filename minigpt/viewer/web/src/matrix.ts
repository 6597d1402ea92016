/** "At all letters": the attention matrix of a head, beside the text. */

import { Cells, STAGES } from "./cells.js";
import { color, h, isTouch, paint, percent, setText } from "./dom.js";
import { openSheet } from "./sheet.js";
import { drawLetter } from "./text.js";
import type { Cell } from "./cells.js";
import type { Position } from "./answers.js";
import type { App, Head } from "./app.js";
import type { Letter } from "./letters.js";
import type { MatrixAnswer } from "./session.js";

/** The largest side length of the matrix, in pixels. */
const SIDE = 560;
/** Pixels of the window above and below the matrix. */
const AROUND = 240;
/** Pixels around a touch in which the largest value is read. */
const FINGER = 8;
/** rows and columns that a key moves by */
const MOVES: Record<string, Cell> = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
const AXES = "Each row is a letter that attends, and each column is a letter that it attends to. ";
const HOW = "Point at a cell to read it, or use the arrow keys. A click goes to its letter.";

export function openMatrix(app: App) {
  const { head, letters } = app.state; // those that the answer is about
  if (head) app.askOnce("matrix", head, (reply, position) => showMatrix(app, head, reply, { ...position, letters }));
}

export type About = Position & { letters: Letter[] };

/** @param about what was asked */
function showMatrix(app: App, head: Head, reply: MatrixAnswer, { model, selected, from, ids, letters: all }: About) {
  const { n_embd, n_head } = app.payload.models[model].config;
  const cells = new Cells(reply, ids.length, n_embd / n_head);
  const side = Math.min(SIDE, window.innerWidth - 100, window.innerHeight - AROUND);
  const size = Math.max(1, Math.floor((side / cells.T) * devicePixelRatio) / devicePixelRatio); // sharp edges
  const hue = `--head-${head.head % 8}`;
  const name = `${head.layer}·${head.head}`;
  const label = `Attention of head ${name}: a row per letter, a column per letter attended to`;
  const canvas = h("canvas.matrix", { role: "img", "aria-label": label });
  const across = h("div.across"), down = h("div.down");
  const readout = h("p.readout", { role: "status" });
  const options = Object.entries(STAGES).map(([value, name]) => h("option", { value }, name));
  const select = h("select", { "aria-label": "Stage", onchange: changeStage }, ...options);
  const go = h("button", { onclick: selectRow });
  const square = h("div.square", canvas, across, down);
  const letters = all.filter(({ first, last }) => first >= from && last < from + ids.length);
  const spans = letters.map(() => h("span"));
  const text = h("div.drawn", ...spans);
  const area = h("div.scroll", { tabindex: "0", role: "region", "aria-label": "Matrix" }, square, text);
  const controls = h("p.controls", h("label", "show ", select), go);
  const intro = h("p", AXES, isTouch() ? "Tap a cell to read it." : HOW);
  const sheet = openSheet(`Head ${name} at all letters`, intro, controls, readout, area);
  square.style.setProperty("--hue", `var(${hue})`);
  text.style.setProperty("--hue", `var(${hue})`);
  let cell = cells.strongest(selected);
  let isByTouch = false;
  function changeStage() {
    cells.stage = select.value as keyof typeof STAGES;
    drawCells(canvas, cells, size, hue);
    read(cell);
  }

  function read(next: Cell) {
    cell = next;
    const [row, column] = cell;
    const value = cells.value(cell);
    const known = cells.stage === "weights" ? percent(value) : value.toFixed(2);
    const [query, key] = cell.map((t) => `“${app.vocabulary.show(ids[t])}” at ${t}`);
    setText(readout, `${query} attends to ${key}: ${column > row ? "hidden by the mask" : known}`);
    setText(go, `Go to ${query}`);
    Object.assign(across.style, { top: `${row * size}px`, height: `${size}px` });
    Object.assign(down.style, { left: `${column * size}px`, width: `${size}px` });
    const places = Object.entries({ selected: row + from, pointed: column + from });
    letters.forEach((letter, i) => {
      const here = places.filter(([, token]) => letter.first <= token && token <= letter.last);
      drawLetter(spans[i], letter, 0, here.map(([place]) => place));
    });
  }

  /** Read what is under the mouse, or the largest value under a finger. */
  function point({ pointerType, offsetX, offsetY }: PointerEvent) {
    isByTouch = pointerType !== "mouse";
    const distance = isByTouch ? Math.floor(FINGER / size) : 0;
    read(cells.largestNear([Math.floor(offsetY / size), Math.floor(offsetX / size)], distance));
  }

  function selectRow() {
    sheet.close();
    app.select(app.state.letters.findIndex(({ last }) => last >= cell[0] + from));
  }

  canvas.addEventListener("pointerdown", point);
  canvas.addEventListener("pointermove", point);
  canvas.addEventListener("click", () => isByTouch || selectRow());
  area.addEventListener("keydown", (event) => {
    if (event.key === "Enter") selectRow();
    const move = MOVES[event.key];
    if (!move) return;
    event.preventDefault();
    read(cells.inside([cell[0] + move[0], cell[1] + move[1]]));
  });
  changeStage();
  area.focus();
}

/** @param size of a cell, in pixels @param hue of attention weights */
function drawCells(canvas: HTMLCanvasElement, cells: Cells, size: number, hue: string) {
  const side = size * cells.T;
  canvas.style.width = canvas.style.height = `${side}px`;
  const context = paint(canvas, side, side);
  const [weight, positive, negative] = [hue, "--warm", "--cool"].map((name) => color(canvas, name));
  let largest = 1e-12;
  for (const cell of cells.seen()) largest = Math.max(largest, Math.abs(cells.value(cell)));
  for (const cell of cells.seen()) {
    const part = cells.value(cell) / largest;
    const isWeight = cells.stage === "weights";
    context.globalAlpha = isWeight ? Math.sqrt(part) : Math.abs(part);
    context.fillStyle = isWeight ? weight : part > 0 ? positive : negative;
    context.fillRect(cell[1] * size, cell[0] * size, size, size);
  }
}
