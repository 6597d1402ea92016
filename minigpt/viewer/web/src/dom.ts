/** Small helpers to build and draw elements. */

export type Child = Node | string | null | false | undefined;
type Tags = HTMLElementTagNameMap;
type Attributes = Record<string, any>;

/** Create an element.
 * @param tag with its classes, such as `p.note`
 * @param first attributes, or the first child. `onclick` and the like are listeners; false and null are left out. */
export function h<K extends keyof Tags>(
  tag: K | `${K}.${string}`, first?: Attributes | Child, ...rest: Child[]
): Tags[K] {
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

/** A table with columns of these names. @param kind its class */
export function table(kind: string, names: string[], rows: Child[][]) {
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
  without: "Without a head: what it copies is replaced by zeros, and all later layers are computed again.",
  temperature: "Low temperatures make likely letters likelier. The tick in a bar is the probability at temperature 1.",
  nats: "Entropy says how open the choice of the dark bars is. 0 nats: certain. 0.69 nats: as open as a coin toss.",
  query: "A query is a vector that says what a head looks for at this letter.",
  key: "A key is a vector that says what an earlier letter has to offer. A head compares it with the query.",
  value: "A value is the vector that a head copies from an earlier letter.",
  logits: "Logits are the numbers that the model gives to all letters. Softmax turns them into probabilities.",
  parameters: "The parameters are the numbers that training adjusts.",
};
let terms = 0;

/** A word with a definition on hover, on focus and on a tap. */
export function term(name: keyof typeof DEFINITIONS, shown: string = name) {
  return explained(shown, DEFINITIONS[name]);
}

export function explained(shown: Child, text: Child) {
  const id = `term-${terms++}`;
  const definition = h("span.definition", { role: "tooltip", id }, text);
  const place = () => {
    const { left, width } = definition.getBoundingClientRect();
    const beyond = left - definition.offsetLeft + width + 12 - document.documentElement.clientWidth;
    definition.style.left = `${-Math.max(0, beyond)}px`;
  };
  const onkeydown = ({ key }: KeyboardEvent) => key === "Escape" && element.blur();
  const attributes = { tabindex: "0", role: "note", "aria-describedby": id, onpointerenter: place, onfocus: place };
  const element: HTMLElement = h("span.term", { ...attributes, onkeydown }, shown, definition);
  return element;
}

/** What is drawn on canvases is old when the window has another size or theme. */
export const view = { version: 0 };
const colors = new Map<string, string>();

/** Draw all again. */
export function refresh() {
  view.version++;
  colors.clear();
}

/** A function that tells whether its arguments, or the view, have changed since its last call. */
export function watch() {
  let before: unknown[] = [];
  return (...now: unknown[]) => {
    now.push(view.version);
    const isSame = now.every((value, i) => value === before[i]);
    before = now;
    return !isSame;
  };
}

/** Prepare a canvas for the screen's resolution, and return its context in CSS pixels. */
export function paint(canvas: HTMLCanvasElement, width: number, height: number) {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio); // clears it, too
  canvas.height = Math.round(height * ratio);
  const context = canvas.getContext("2d") as CanvasRenderingContext2D;
  context.scale(ratio, ratio);
  return context;
}

/** A color of the page in its theme. @param name such as `--ink` */
export function color(name: string) {
  const probe = document.body;
  if (!colors.has(name)) {
    probe.style.caretColor = `var(${name})`;
    colors.set(name, getComputedStyle(probe).caretColor);
    probe.style.caretColor = "";
  }
  return colors.get(name) as string;
}

/** Whether the visitor points with a finger. */
export function isTouch() {
  return matchMedia("(pointer: coarse)").matches;
}

/** The name and the step of a model. */
export function named({ name, step }: { name: string, step: number }) {
  return `${name}, step ${step.toLocaleString("en")}`;
}

/** Write a probability as a percentage. */
export function percent(p: number) {
  const value = 100 * p;
  if (value >= 9.5 || value === 0) return `${Math.round(value)}%`;
  return value < 0.05 ? "<0.1%" : `${value.toFixed(1)}%`;
}

/** Open a sheet over the page, instead of one that is open. */
export function openSheet(title: string, ...content: (Node | string)[]) {
  const close = h("button.quiet", { onclick: () => dialog.close(), "aria-label": "Close" }, "✕");
  const inside = h("div", h("div.row", h("h2", title), close), ...content); // so that only a click beside it closes it
  const dialog = h("dialog.sheet", { "aria-label": title }, inside);
  dialog.addEventListener("close", () => dialog.remove());
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  document.querySelector("dialog")?.close();
  document.body.append(dialog);
  dialog.showModal();
  return { close: () => dialog.close() };
}
