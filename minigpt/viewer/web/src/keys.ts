/** The keyboard. In the text, keys type. */

import { openHelp } from "./sheet.js";
import type { App } from "./app.js";

/** @param step in the film */
export function listen(app: App, compute: () => void, step?: (by: number) => void) {
  document.addEventListener("keydown", (event) => {
    const target = event.target as HTMLElement;
    if (event.key === "Escape" && target.matches("textarea")) target.blur();
    if (event.altKey || document.querySelector("dialog")) return;
    const isCommand = event.ctrlKey || event.metaKey;
    if (isCommand ? !/^[zy]$/i.test(event.key) : target.matches("textarea, select, input:not([type=range])")) return;
    if (target.matches("input") && event.key.startsWith("Arrow")) return; // they move the slider
    if (event.key === " " && target.matches("button, summary")) return;
    const key = event.key.toLowerCase();
    const act = actions(app, compute, step)[key === "z" && event.shiftKey ? "y" : key];
    if (!act) return;
    event.preventDefault();
    act();
  });
}

type Action = (() => void) | false | null | undefined;

/** What each key does now. */
function actions(app: App, compute: () => void, step?: (by: number) => void): Record<string, Action> {
  const { selected, head } = app.state;
  const { config, heads } = app.model;
  const next = (layer: number) => (head?.layer === layer ? (head.head + 1) % config.n_head : 0);
  const layers = heads.map((_, layer) => [layer, () => app.choose({ layer, head: next(layer) })]);
  return {
    ...Object.fromEntries(layers),
    arrowleft: () => app.select(selected - 1),
    arrowright: () => app.select(selected + 1),
    m: head && (() => app.toggle(head)),
    a: () => app.mute([]),
    " ": () => app.write(),
    s: () => app.step(),
    ",": step && (() => step(-1)),
    ".": step && (() => step(1)),
    z: () => app.undo(),
    y: () => app.redo(),
    c: head && compute,
    "?": openHelp,
  };
}
