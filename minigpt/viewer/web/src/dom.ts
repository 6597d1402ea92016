/** Small helpers to build and draw elements. */

import type { Model } from "./types.js";

export type Child = Node | string | null | false | undefined;

type Tags = HTMLElementTagNameMap;
type Attributes = Record<string, any>;

/** Create an element.
 * @param tag with its classes, such as `p.note`
 * @param first attributes, or the first child. `onclick` and the like are listeners; false and null are left out. */
export function h<K extends keyof Tags>(tag: K | `${K}.${string}`, first?: Attributes | Child, ...rest: Child[]): Tags[K] {
  const [name, ...classes] = tag.split(".") as [K, ...string[]];
  const element = document.createElement(name);
  element.classList.add(...classes);
  const isChild = !first || typeof first === "string" || first instanceof Node;
  for (const [key, value] of Object.entries(isChild ? {} : (first as Attributes))) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (value === true) element.setAttribute(key, "");
    else if (value || value === 0 || value === "") element.setAttribute(key, value);
  }
  for (const child of isChild ? [first as Child, ...rest] : rest) if (child) element.append(child);
  return element;
}

/** A table. @param kind its class @param names of columns @param rows of cells */
export function table(kind: string, names: string[], rows: (Child[])[]) {
  const head = names.length > 0 && h("thead", h("tr", ...names.map((name) => h("th", { scope: "col" }, name))));
  const body = rows.map((cells) => h("tr", ...cells.map((cell) => h("td", cell))));
  return h("table", { class: kind }, head, h("tbody", ...body));
}

/** Set the text of an element, if it changes: unchanged nodes keep a reader's selection. */
export function setText(node: Node, text: string) {
  if (node.textContent !== text) node.textContent = text;
}

const DEFINITIONS = {
  layer: "A layer is one round of computation. Each layer improves what the model knows at every letter.",
  heads: "A head decides, at each letter, which earlier letters to attend to, and copies what it finds there.",
  temperature: "Low temperatures make likely letters likelier. The tick in a bar is the probability at temperature 1.",
  nats: "Entropy measures how open the choice is, by the dark bars. 0 nats: certain. 0.69: as open as a coin toss.",
  query: "A query is a vector that says what a head looks for at this letter.",
  key: "A key is a vector that says what an earlier letter has to offer. A head compares it with the query.",
  value: "A value is the vector that a head copies from an earlier letter.",
  logits: "Logits are scores of all letters, before softmax turns them into probabilities.",
  parameters: "The parameters are the numbers that training adjusts.",
};
let terms = 0;

/** A word with a definition on hover and on focus. */
export function term(name: keyof typeof DEFINITIONS, shown: string = name) {
  const id = `term-${terms++}`;
  const definition = h("span.definition", { role: "tooltip", id }, DEFINITIONS[name]);
  const place = () => {
    const { left, width } = definition.getBoundingClientRect();
    const beyond = left - definition.offsetLeft + width + 12 - document.documentElement.clientWidth;
    definition.style.left = `${-Math.max(0, beyond)}px`;
  };
  const attributes = { tabindex: "0", "aria-describedby": id, onpointerenter: place, onfocus: place };
  return h("span.term", attributes, shown, definition);
}

/** Prepare a canvas for the screen's resolution, and return its context in CSS pixels. */
export function paint(canvas: HTMLCanvasElement, width: number, height: number) {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const context = canvas.getContext("2d") as CanvasRenderingContext2D;
  context.scale(ratio, ratio);
  return context;
}

/** A color of the page in the theme of an element. @param name such as `--ink` */
export function color(element: HTMLElement, name: string) {
  element.style.color = `var(${name})`;
  return getComputedStyle(element).color;
}

/** Whether the visitor points with a finger. */
export function isTouch() {
  return matchMedia("(pointer: coarse)").matches;
}

/** The name and the step of a model. */
export function named({ name, step }: Model) {
  return `${name}, step ${step.toLocaleString("en")}`;
}

/** Write a probability as a percentage. */
export function percent(p: number) {
  const value = 100 * p;
  if (value >= 9.5 || value === 0) return `${Math.round(value)}%`;
  return value < 0.05 ? "<0.1%" : `${value.toFixed(1)}%`;
}
