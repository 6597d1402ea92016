/** Sheets: what opens over the workbench and closes again. There is one at most. */

import { h, table } from "./dom.js";

export function openSheet(title: string, ...content: (Node | string)[]): { close: () => void } {
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

export function openHelp() {
  const keys = [
    ["← →", "select the letter before or after"],
    ["0 … 9", "choose a layer; again for its next head"],
    ["M", "switch the chosen head off or on"],
    ["A", "switch all heads on"],
    ["Space", "write, or pause"],
    ["S", "write one letter"],
    ["Z Y", "undo, redo; in the text with Ctrl"],
    ["C", "compute this letter"],
    [", .", "show the moment before or after, if there is a film"],
    ["Esc", "leave the text, or close this sheet"],
  ];
  const rows = keys.map(([key, does]) => [h("kbd", key), does]);
  const where = h("p", "They work everywhere but in the text. There, keys type; Esc leaves it.");
  openSheet("Keys", where, table("keys", [], rows));
}
