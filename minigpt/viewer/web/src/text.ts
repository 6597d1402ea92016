/** The text panel: the drawn letters, shaded by what a head attends to or by surprise, under an editable field. */

import { learned } from "./film.js";
import { argmax } from "./filters.js";
import { textField } from "./field.js";
import { toField } from "./letters.js";
import { h, isTouch, percent, setText, term, view, watch } from "./dom.js";
import { attentionShares, letterOf, quoted, surprises } from "./views.js";
import type { App, Shade, State } from "./app.js";
import type { Letter } from "./letters.js";

/** The least and the most opacity of a shade: paler ones cannot be seen in the dark, nor letters on darker ones. */
const PALEST = 0.16, DARKEST = 0.5;
/** The least attention that has a shade. */
const FAINTEST = 0.01;

export function textPanel(app: App) {
  const before = h("span.unseen"), windowed = h("span"), after = h("span.after");
  const ghost = h("span.ghost"), written = h("span.written");
  const drawn = h("div.drawn", { "aria-hidden": "true" }, before, windowed, after, ghost, written);
  const field = textField(app, letterAt);
  const paper = h("div.paper", drawn, field.area);
  const write = h("button.primary", { onclick: () => app.write() }, "Write");
  const step = h("button", { onclick: () => app.step() }, "One letter");
  const undo = h("button", { onclick: () => app.undo() }, "Undo");
  const edit = h("button.touch", { onclick: field.startEditing }, "Edit");
  const shades = { head: "the chosen head", surprise: "surprise", learned: "when it was learned", nothing: "nothing" };
  const offered = Object.entries(shades).filter(([value]) => value !== "learned" || app.film.length);
  const options = offered.map(([value, name]) => h("option", { value }, name));
  const onchange = () => app.set({ shade: shade.value as Shade });
  const shade = h("select", { "aria-label": "Shade the text by", onchange }, ...options);
  const message = h("p.message", { role: "status" }), legend = h("p.note"), scale = h("p.scale");
  const off = h("button.quiet.off", { onclick: () => app.mute([]) });
  const notice = h("div.notice", message, off, legend, scale);
  const lead = h("p.lead", "Click any letter: you see what the model expected ", h("b", "next"));
  const hasHeads = app.payload.models.some(({ heads }) => heads.length);
  if (hasHeads) lead.append(", and where its ", term("heads"), " ", h("b", "looked"));
  lead.append(". Type to change the text.");
  if (isTouch()) setText(lead, "Tap any letter. Edit changes the text.");
  const controls = h("div.controls", write, step, edit, undo, h("label", "shade by ", shade));
  const element = h("section.card.text", { "aria-label": "Text" }, lead, paper, controls, notice);
  element.addEventListener("click", ({ target }) => {
    if (!(target as Element).closest(".controls, .term, .off")) field.area.focus();
  });

  /** The index of the letter under the mouse, or -1. */
  function letterAt({ clientX, clientY, offsetY }: MouseEvent) {
    if (offsetY > drawn.offsetHeight) return app.state.letters.length - 1; // below the text
    const under = document.elementsFromPoint(clientX, clientY);
    return Number(spans.find((span) => under.includes(span))?.dataset.index ?? -1);
  }

  const spans: HTMLSpanElement[] = [], changed = watch();
  let seen = "", fitted = -1;

  function draw(state: State) {
    const { text, letters, selected, message: said } = state, { look, writer, history } = app;
    field.draw(state);
    shade.value = state.shade;
    setText(write, writer.isWriting ? "Pause" : "Write");
    undo.disabled = history.past.length === 0;
    setText(message, said);
    message.hidden = !said;
    const count = app.muted.size;
    off.hidden = !count;
    setText(off, `${count} head${count > 1 ? "s" : ""} off · switch on`);
    const looks = state.shade === "learned" ? app.film.map((model) => app.fresh(model)) : [];
    const next = writer.isWriting ? "" : app.vocabulary.decode(app.fresh()?.written ?? []);
    if (!changed(text, selected, look, count, app.shadingHead, state.shade, next, state.model, ...looks)) return;
    const first = letterOf(letters, app.positions[state.model].from);
    const last = Math.min(letters.length, first + app.context(state.model));
    setText(before, toField(text.slice(0, letters[first].start)));
    setText(after, toField(text.slice(letters[last - 1].end)));
    while (spans.length > last - first) spans.pop()?.remove();
    while (spans.length < last - first) spans.push(windowed.appendChild(h("span")));
    const shares = shading();
    spans.forEach((span, i) => {
      span.dataset.index = String(first + i);
      drawLetter(span, letters[first + i], shares[first + i], placesOf(first + i));
    });
    const top = look ? argmax(look.logits) : -1;
    ghost.hidden = top < 0 || selected < letters.length - 1;
    setText(ghost, top < 0 ? "" : app.vocabulary.show(top));
    setText(written, ghost.hidden ? "" : [...next.split("\n")[0]].slice(1).join(""));
    drawScale(state);
    paper.style.setProperty("--hue", app.hue);
    setText(legend, describe(first, shares));
    if (fitted !== view.version) paper.style.setProperty("--room", `${drawn.offsetHeight}px`); // more text scrolls
    fitted = view.version;
    if (seen !== `${selected} ${text}`) scrollTo(spans[selected - first]);
    seen = `${selected} ${text}`;
  }

  function scrollTo(span: HTMLElement | undefined) {
    const at = span?.getBoundingClientRect(), view = paper.getBoundingClientRect();
    if (at && (at.top < view.top || at.bottom > view.bottom)) paper.scrollTop += at.top - view.top - view.height / 2;
  }

  /** How dark each letter of the text is, from 0 to 1. */
  function shading() {
    const { look, shadingHead, state } = app;
    if (look && shadingHead) return attentionShares(state.letters, look, app.index(shadingHead));
    if (state.shade === "learned") return learned(app.film.map((model) => app.fresh(model)), state.letters);
    if (look && state.shade === "surprise") return surprises(state.letters, look);
    return new Float64Array(state.letters.length);
  }

  /** The classes of a letter of the text. */
  function placesOf(index: number) {
    const { look, state: { ids, letters, selected } } = app;
    const places = index === selected ? ["selected"] : index > selected ? ["after"] : [];
    if (!look || index !== selected + 1) return places;
    return [...places, argmax(look.logits) === ids[letters[index].first] ? "hit" : "miss"];
  }

  /** Which shade is which moment. */
  function drawScale({ shade }: State) {
    scale.hidden = shade !== "learned" || app.shadingHead !== null;
    if (scale.hidden || scale.childElementCount) return;
    const chips = app.film.map((model, moment) => {
      const chip = h("span", app.payload.models[model].step.toLocaleString("en"));
      shadeBy(chip, (moment + 1) / app.film.length);
      return chip;
    });
    scale.append(...chips, " never");
  }

  /** @param unseen the number of letters before the window */
  function describe(unseen: number, shares: Float64Array) {
    const unit = app.vocabulary.isByte ? "bytes" : "letters";
    const { context } = app.model.config;
    const start = unseen ? `The model does not see the gray start: its context is ${context} ${unit}. ` : "";
    const head = app.shadingHead;
    if (!head) {
      if (app.state.shade === "learned") return `${start}The step from which each letter had at least 50%:`;
      return start + (app.state.shade === "surprise" ? "The darker a letter, the less the model expected it." : "");
    }
    const strongest = argmax(shares);
    if (!shares[strongest]) return start;
    const most = `${quoted(app.state.letters, strongest)}: ${percent(shares[strongest])}`;
    const isOff = app.muted.has(app.index(head)) ? " (it is off)" : "";
    return `${start}Here, head ${head.layer}·${head.head}${isOff} attends most to ${most}.`;
  }
  return { element, draw };
}

/** @param share how dark it is, from 0 to 1 @param places more classes */
export function drawLetter(span: HTMLElement, { text }: Letter, share: number, places: string[]) {
  const kind = text === " " ? "space" : text === "\n" ? "newline" : "", isShaded = share >= FAINTEST;
  const name = [kind, isShaded && "shaded", ...places].filter(Boolean).join(" ");
  setText(span, toField(text));
  if (span.className !== name) span.className = name;
  shadeBy(span, share);
}

/** @param share how dark it is, from 0 to 1 */
function shadeBy(span: HTMLElement, share: number) {
  const value = share < FAINTEST ? "0%" : `${Math.round(100 * (PALEST + (DARKEST - PALEST) * share))}%`;
  if (span.style.getPropertyValue("--share") !== value) span.style.setProperty("--share", value);
}
