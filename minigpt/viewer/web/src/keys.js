/** The keyboard. In the text, keys type. */

import { openHelp } from "./sheet.js";

/** @param {import("./app.js").App} app @param {() => void} compute */
export function listen(app, compute) {
  document.addEventListener("keydown", (event) => {
    const target = /** @type {HTMLElement} */ (event.target);
    if (event.key === "Escape" && target.matches("textarea")) target.blur();
    if (event.altKey || document.querySelector("dialog")) return;
    const isCommand = event.ctrlKey || event.metaKey;
    if (isCommand ? !/^[zy]$/i.test(event.key) : target.matches("textarea, select, input")) return;
    if (event.key === " " && target.matches("button, summary")) return;
    const key = event.key.toLowerCase();
    const act = actions(app, compute)[key === "z" && event.shiftKey ? "y" : key];
    if (!act) return;
    event.preventDefault();
    act();
  });
}

/** What each key does now.
 * @param {import("./app.js").App} app @param {() => void} compute
 * @returns {Record<string, (() => void) | false | null>} */
function actions(app, compute) {
  const { selected, head, model, other } = app.state;
  const count = app.payload.models.length;
  const { config, heads } = app.model;
  const next = (/** @type {number} */ layer) => (head?.layer === layer ? (head.head + 1) % config.n_head : 0);
  const layers = heads.map((_, layer) => [layer, () => app.choose({ layer, head: next(layer) })]);
  return {
    ...Object.fromEntries(layers),
    arrowleft: () => app.select(selected - 1),
    arrowright: () => app.select(selected + 1),
    m: head && (() => app.toggle(head)),
    a: () => app.mute([]),
    " ": () => app.write(),
    s: () => app.step(),
    ",": count > 1 && (() => app.compare((model + count - 1) % count, other)),
    ".": count > 1 && (() => app.compare((model + 1) % count, other)),
    z: () => app.undo(),
    y: () => app.redo(),
    c: head && compute,
    "?": openHelp,
  };
}
