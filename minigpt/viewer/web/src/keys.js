/** The keyboard. In the text, keys type. */

import { openHelp } from "./sheet.js";

/** @param {import("./app.js").App} app @param {() => void} compute */
export function listen(app, compute) {
  document.addEventListener("keydown", (event) => {
    const target = /** @type {HTMLElement} */ (event.target);
    if (event.key === "Escape" && target.matches("textarea")) target.blur();
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog")) return;
    if (target.matches("textarea, select, input")) return;
    if (event.key === " " && target.matches("button, summary")) return;
    const act = action(app, event.key, compute);
    if (!act) return;
    event.preventDefault();
    act();
  });
}

/**
 * @param {import("./app.js").App} app @param {string} key @param {() => void} compute
 * @returns {(() => void) | null}
 */
function action(app, key, compute) {
  const { state } = app;
  const canCompute = Boolean(app.model.weights);
  if (/^\d$/.test(key)) return () => nextHead(app, Number(key));
  switch (key.toLowerCase()) {
    case "arrowleft":
      return () => app.select(state.selected - 1);
    case "arrowright":
      return () => app.select(state.selected + 1);
    case "m":
      return canCompute && state.head ? () => toggle(app) : null;
    case "a":
      return () => app.mute([...state.muted[state.model]], false);
    case " ":
      return canCompute ? () => app.write() : null;
    case "s":
      return canCompute ? () => app.step() : null;
    case "z":
      return () => app.undo();
    case "c":
      return canCompute && state.head ? compute : null;
    case "?":
      return openHelp;
    default:
      return null;
  }
}

/** @param {import("./app.js").App} app @param {number} layer */
function nextHead(app, layer) {
  const { n_layer, n_head } = app.model.config;
  const { head } = app.state;
  if (layer >= n_layer || !app.model.heads.length) return;
  app.choose({ layer, head: head?.layer === layer ? (head.head + 1) % n_head : 0 });
}

/** @param {import("./app.js").App} app */
function toggle(app) {
  const { head, muted, model } = app.state;
  if (!head) return;
  const index = head.layer * app.model.config.n_head + head.head;
  app.mute([index], !muted[model].has(index));
}
