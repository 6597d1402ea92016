/** The text field. It is transparent, over the drawn letters: it takes the keys and shows the caret. */

import { h, isTouch } from "./dom.js";
import { fromField, toField } from "./letters.js";
import type { App, State } from "./app.js";

/** @param letterAt the index of the letter under a click, or -1 */
export function textField(app: App, letterAt: (event: MouseEvent) => number) {
  const help = { spellcheck: "false", autocapitalize: "off", autocomplete: "off" };
  const area = h("textarea", { id: "text", "aria-label": "Text", rows: "1", readonly: isTouch(), ...help });
  const hasCaret = () => area.selectionStart === area.selectionEnd;

  function typed() {
    app.edit(fromField(area.value, app.state.text), area.selectionStart, "typing");
    if (!area.value) area.setRangeText(toField(app.state.text), 0, 0, "select"); // what is typed next replaces it
  }
  // While an input method, such as pinyin, composes letters, the style shows the field instead of the drawn letters.
  area.addEventListener("compositionstart", () => area.classList.add("composing"));
  area.addEventListener("compositionend", () => {
    area.classList.remove("composing");
    typed();
  });
  area.addEventListener("input", () => area.classList.contains("composing") || typed());
  area.addEventListener("beforeinput", (event) => {
    if (!hasCaret()) app.history.endGroup(); // to replace a selection is a step of Undo
    if (!event.inputType.startsWith("history")) return;
    event.preventDefault();
    if (event.inputType === "historyUndo") app.undo();
  });

  /** Select the letter before the caret. */
  function selectAtCaret() {
    if (!hasCaret() || area.value !== toField(app.state.text)) return;
    const index = app.state.letters.findIndex(({ end }) => end >= area.selectionStart);
    if (index !== app.state.selected) app.select(index);
  }
  document.addEventListener("selectionchange", () => document.activeElement === area && selectAtCaret());
  area.addEventListener("click", (event) => {
    const letter = app.state.letters[letterAt(event)];
    if (letter && hasCaret()) area.setSelectionRange(letter.end, letter.end); // a click puts it before or after
    selectAtCaret();
  });

  /** The caret as the last drawing left it. */
  let drawnCaret = -1;

  /** Show the text, with the caret after the selected letter. */
  function draw({ text, letters, selected }: State) {
    if (area.classList.contains("composing")) return;
    const value = toField(text), { end } = letters[selected];
    const isMoved = area.value === value && document.activeElement === area && area.selectionStart !== drawnCaret;
    if (area.value !== value) area.value = value;
    drawnCaret = area.selectionStart;
    if (isMoved) return selectAtCaret(); // the browser has not said so yet
    const isAtStart = selected === 0 && area.selectionStart === 0; // a letter can be inserted there
    if (hasCaret() && area.selectionStart !== end && !isAtStart) area.setSelectionRange(end, end);
    drawnCaret = area.selectionStart;
  }

  function startEditing() {
    area.readOnly = false;
    area.focus();
  }
  return { area, draw, startEditing };
}
