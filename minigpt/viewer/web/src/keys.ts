/** The keyboard. In the text, keys type. */

import { h, openSheet, table } from "./dom.js";
import type { App } from "./app.js";

const KEYS = [
  ["← →", "select the letter before or after"],
  ["Space", "write, or pause"],
  [", .", "show the moment before or after, if there is a film"],
  ["Esc", "leave the text, or close this sheet"],
  ["?", "show these keys"],
];

export function openHelp() {
  const rows = KEYS.map(([key, does]) => [h("kbd", key), does]);
  const where = h("p", "They work everywhere but in the text, where keys type. Arrows also move along a row of heads.");
  openSheet("Keys", where, table("keys", [], rows));
}

/** @param step moves in the film */
export function listen(app: App, step?: (by: number) => void) {
  document.addEventListener("keydown", (event) => {
    const target = event.target as HTMLElement, { key } = event;
    if (key === "Escape" && target.matches("textarea")) target.blur();
    if (event.altKey || event.ctrlKey || event.metaKey || document.querySelector("dialog")) return;
    if (target.matches("textarea, select, input:not([type=range])")) return;
    if (key.startsWith("Arrow") && target.matches("input, .tile button")) return; // they have arrows of their own
    if (key === " " && target.matches("button, summary")) return;
    const { selected } = app.state;
    const act = ({
      ArrowLeft: () => app.select(selected - 1),
      ArrowRight: () => app.select(selected + 1),
      " ": () => app.write(),
      ",": () => step?.(-1),
      ".": () => step?.(1),
      "?": openHelp,
    } as Record<string, () => void>)[key];
    if (!act) return;
    event.preventDefault();
    act();
  });
}
