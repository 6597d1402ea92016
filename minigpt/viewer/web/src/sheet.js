/** Sheets: what opens over the workbench and closes again. */

import { h, table } from "./dom.js";

/**
 * @param {string} title
 * @param {...(Node | string)} content
 * @returns {{close: () => void}}
 */
export function openSheet(title, ...content) {
  const dialog = h(
    "dialog.sheet",
    { "aria-label": title },
    h("div.row", h("h2", title), h("button.quiet", { onclick: () => dialog.close(), "aria-label": "Close" }, "✕")),
    ...content,
  );
  dialog.addEventListener("close", () => dialog.remove());
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
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
    ["Z", "undo"],
    ["C", "compute this letter"],
    ["Esc", "leave the text, or close this sheet"],
  ];
  openSheet(
    "Keys",
    h("p", "They work everywhere but in the text. There, keys type; Esc leaves it."),
    table(
      "keys",
      [],
      keys.map(([key, does]) => [h("kbd", key), does]),
    ),
  );
}
