/** The text panel: an editable text over a drawn copy that shows the selected letter and what a head attends to. */

import { argmax } from "./filters.js";
import { fromField, glyph, toField } from "./letters.js";
import { h, percent, setText, term } from "./dom.js";

/** The maximum number of letters to draw apart. */
const DRAWN = 1024;

/** @param {import("./app.js").App} app */
export function textPanel(app) {
  const readonly = matchMedia("(pointer: coarse)").matches;
  const help = { spellcheck: "false", autocapitalize: "off", autocomplete: "off" };
  const area = h("textarea", { id: "text", "aria-label": "Text", rows: "1", readonly, ...help });
  const before = h("span.unseen");
  const windowed = h("span");
  const after = h("span.after");
  const ghost = h("span.ghost");
  const drawn = h("div.drawn", { "aria-hidden": "true" }, before, windowed, after, ghost);
  const paper = h("div.paper", drawn, area);
  const write = h("button.primary", { onclick: () => app.write() }, "Write");
  const step = h("button", { onclick: () => app.step() }, "Step");
  const undo = h("button", { onclick: () => app.undo() }, "Undo");
  const redo = h("button", { onclick: () => app.redo() }, "Redo");
  const edit = h("button.touch", { onclick: startEditing }, "Edit");
  const shades = Object.entries({ head: "the chosen head", surprise: "surprise", nothing: "nothing" });
  const options = shades.map(([value, name]) => h("option", { value }, name));
  const onchange = () => app.set({ shade: /** @type {any} */ (shade.value) });
  const shade = h("select", { "aria-label": "Shade the text by", onchange }, ...options);
  const message = h("p.message", { role: "status" });
  const legend = h("p.note");
  const off = h("button.quiet.off", { onclick: () => app.mute([]) });
  const notice = h("div.notice", message, off, legend);
  const lead = h("p.lead", "Click any letter: you see what the model expected ", h("b", "next"));
  const hasHeads = app.payload.models.some(({ heads }) => heads.length);
  if (hasHeads) lead.append(", and where its ", term("heads"), " ", h("b", "looked"));
  lead.append(readonly ? ". Edit changes the text." : ". Type to change the text.");
  const controls = h("div.controls", write, step, undo, redo, edit, h("label", "shade by ", shade));
  const element = h("section.card.text", { "aria-label": "Text" }, lead, paper, controls, notice);

  function startEditing() {
    area.readOnly = false;
    area.focus();
  }
  element.addEventListener("click", ({ target }) => {
    if (!(/** @type {Element} */ (target).closest(".controls, .term, .off"))) area.focus();
  });
  function typed() {
    app.edit(fromField(area.value, app.state.text), area.selectionStart, "typing");
    if (!area.value) area.setRangeText(toField(app.state.text), 0, 0, "select"); // what is typed next replaces it
  }
  let isComposing = false; // an input method, such as pinyin, writes letters that it will replace
  area.addEventListener("compositionstart", () => {
    isComposing = true;
    paper.classList.add("composing"); // shows the field instead of the drawn copy
  });
  area.addEventListener("compositionend", () => {
    isComposing = false;
    paper.classList.remove("composing");
    typed();
  });
  area.addEventListener("input", () => isComposing || typed());
  area.addEventListener("beforeinput", (event) => {
    if (area.selectionStart !== area.selectionEnd) app.history.endGroup(); // to replace a selection is a step of Undo
    if (!event.inputType.startsWith("history")) return;
    event.preventDefault();
    if (event.inputType === "historyUndo") app.undo();
    else app.redo();
  });
  area.addEventListener("click", (event) => {
    if (area.selectionStart !== area.selectionEnd) return;
    const letter = document
      .elementsFromPoint(event.clientX, event.clientY)
      .find((e) => e instanceof HTMLElement && e.dataset.index);
    if (letter instanceof HTMLElement) app.select(Number(letter.dataset.index));
    else if (event.offsetY > drawn.offsetHeight) app.select(Infinity); // below the text
    moveCaret(); // before the browser says where it has put it
  });
  function moveCaret() {
    const { end } = app.state.letters[app.state.selected];
    const isAtStart = app.state.selected === 0 && area.selectionStart === 0; // a letter can be inserted there
    if (area.selectionStart === area.selectionEnd && area.selectionStart !== end && !isAtStart)
      area.setSelectionRange(end, end);
  }
  document.addEventListener("selectionchange", () => {
    const isCaret = document.activeElement === area && area.selectionStart === area.selectionEnd;
    if (!isCaret || area.value !== toField(app.state.text)) return;
    const at = app.state.letters.findIndex((letter) => letter.end >= area.selectionStart);
    if (at !== app.state.selected && area.selectionStart !== app.state.letters[app.state.selected].end) app.select(at);
  });

  /** @type {HTMLSpanElement[]} */
  const spans = [];
  let seen = -1;

  /** @param {import("./app.js").State} state */
  function draw(state) {
    if (isComposing) return;
    const { text, letters, selected } = state;
    const look = app.look;
    const value = toField(text);
    if (area.value !== value) area.value = value;
    moveCaret();
    const { from } = app.position(state.model);
    const unseen = letters.findIndex((letter) => letter.last >= from);
    const first = Math.max(unseen, selected - DRAWN + 1);
    const last = Math.min(letters.length, first + Math.min(app.context(state.model), DRAWN));
    setText(before, value.slice(0, letters[first].start));
    setText(after, value.slice(last ? letters[last - 1].end : 0));
    while (spans.length > last - first) spans.pop()?.remove();
    while (spans.length < last - first) spans.push(windowed.appendChild(h("span")));
    const shares = shading(state, look);
    for (let i = 0; i < spans.length; i++) drawLetter(spans[i], letters[first + i], first + i, selected, shares);
    const top = look ? argmax(look.logits) : -1;
    ghost.hidden = top < 0 || selected < letters.length - 1;
    setText(ghost, top < 0 ? "" : app.vocabulary.show(top));
    if (spans[selected + 1 - first] && top >= 0) {
      const isHit = state.ids[letters[selected + 1].first] === top;
      spans[selected + 1 - first].classList.add("next", isHit ? "hit" : "miss");
    }
    const isByHead = state.shade === "head" && state.head;
    paper.style.setProperty("--hue", isByHead ? `var(--head-${isByHead.head % 8})` : "var(--red)");
    shade.value = state.shade;
    setText(write, state.isWriting ? "Pause" : "Write");
    undo.disabled = app.history.past.length === 0;
    redo.disabled = app.history.future.length === 0;
    setText(message, state.message);
    message.hidden = !state.message;
    const count = app.muted.size;
    off.hidden = !count;
    setText(off, `${count} head${count > 1 ? "s" : ""} off · switch on`);
    setText(legend, describe(state, look, unseen, shares));
    const at = spans[selected - first]?.getBoundingClientRect();
    const view = paper.getBoundingClientRect();
    const isHidden = at && (at.top < view.top || at.bottom > view.bottom);
    if (isHidden && selected !== seen) paper.scrollTop += at.top - view.top - view.height / 2;
    seen = selected;
  }

  /** @param {import("./app.js").State} state @param {import("./app.js").Look | null} look @param {number} unseen
   * @param {number[]} shares */
  function describe(state, look, unseen, shares) {
    const { context } = app.model.config;
    const unit = app.vocabulary.isByte ? "bytes" : "letters";
    const start = unseen ? `The model does not see the grey start: its context is ${context} ${unit}. ` : "";
    if (state.shade === "surprise") return `${start}The darker a letter, the less the model expected it.`;
    if (state.shade === "nothing" || !state.head || !look) return start;
    const name = `${state.head.layer}·${state.head.head}`;
    const strongest = argmax(shares);
    if (!(shares[strongest] >= 0)) return start;
    const letter = glyph(state.letters[strongest].text);
    return `${start}At this letter, head ${name} attends most to “${letter}”: ${percent(shares[strongest])}.`;
  }

  /** How dark each letter of the text is, from 0 to 1, or -1 for none.
   * @param {import("./app.js").State} state @param {import("./app.js").Look | null} look */
  function shading(state, look) {
    const shares = new Array(state.letters.length).fill(-1);
    if (!look || state.shade === "nothing" || (state.shade === "head" && !state.head)) return shares;
    const row = state.shade === "head" && state.head ? attentionRow(app, look, state.head) : null;
    state.letters.forEach((letter, index) => {
      const begin = letter.first - look.from;
      const end = letter.last - look.from;
      if (begin < 0 || end > (row ? look.at : look.ids.length - 1)) return;
      let share = row ? 0 : 1;
      for (let t = begin; t <= end; t++) share = row ? share + row[t] : share * look.surprise[t];
      shares[index] = row ? share : Number.isNaN(share) ? -1 : Math.min(1, -Math.log(share) / 6);
    });
    return shares;
  }
  return { element, draw };
}

/** @param {HTMLSpanElement} span @param {import("./letters.js").Letter} letter @param {number} index
 * @param {number} selected @param {number[]} shares */
function drawLetter(span, letter, index, selected, shares) {
  setText(span, toField(letter.text));
  span.dataset.index = String(index);
  const share = Math.max(0, shares[index]);
  const kind = letter.text === " " ? "space" : letter.text === "\n" ? "newline" : "";
  const place = index === selected ? "selected" : index > selected ? "after" : "";
  span.className = `${kind} ${place} ${share > 0.55 ? "strong" : ""}`;
  span.style.setProperty("--share", share < 0.01 ? "0%" : `${Math.round(100 * Math.min(1, 0.08 + share))}%`);
}

/** The attention weights of a head at the selected letter, (at + 1).
 * @param {import("./app.js").App} app @param {import("./app.js").Look} look @param {import("./app.js").Head} head */
export function attentionRow(app, look, head) {
  const start = app.index(head) * (look.at + 1);
  return look.attention.subarray(start, start + look.at + 1);
}
