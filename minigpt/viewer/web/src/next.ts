/** The panel of the next letter: its probabilities, what really came, and a click to continue with another letter. */

import { argmax, entropy, normalize, softmax } from "./filters.js";
import { glyph } from "./letters.js";
import { h, isTouch, named, percent, setText, term, watch } from "./dom.js";
import { likeliest } from "./views.js";
import type { App, State } from "./app.js";

const ROWS = 5;
/** The maximum number of letters to quote in the title. */
const TAIL = 8;
/** A probability below which an outline would be as wide as its border. */
const SMALL = 0.005;

export function nextPanel(app: App) {
  const tail = h("code"), changed = watch();
  const rows = Array.from({ length: ROWS }, () => row(app));
  const list = h("ol.bars", ...rows.map(({ element }) => element));
  const note = h("p.note");
  const oninput = () => app.set({ sampling: { ...app.state.sampling, temperature: Number(input.value) } });
  const name = { "aria-label": "temperature" };
  const input = h("input", { type: "range", id: "temperature", min: 0, max: 2, step: 0.05, oninput, ...name });
  const output = h("output", { for: "temperature" });
  const slider = h("div.slider", term("temperature"), input, output);
  const title = h("h2", "Next ", h("i", "letter "), "after ", tail);
  const element = h("section.card.next", { "aria-label": "Next letter" }, title, list, note, slider);

  function draw({ letters, selected, ids, sampling, pinned }: State) {
    const { look } = app, isCurrent = app.isCurrent(), rivalLook = app.fresh(pinned), { whole } = look ?? {};
    if (!changed(look, isCurrent, rivalLook, whole, sampling)) return;
    input.value = String(sampling.temperature);
    setText(output, sampling.temperature.toFixed(2));
    list.classList.toggle("stale", !isCurrent);
    if (!isCurrent) return; // the title and the bars change together
    const last = letters.slice(Math.max(0, selected + 1 - TAIL), selected + 1).map(({ text }) => glyph(text));
    setText(tail, last.join("").replace(/.*↵(?=.)/, ""));
    list.hidden = note.hidden = !look;
    if (!look) return; // the model does not answer for this letter
    const plain = softmax(look.logits), chosen = normalize(app.weights(look.logits));
    const isOff = pinned === null && app.muted.size > 0;
    const outlined = isOff ? whole : rivalLook?.logits;
    const rival = outlined ? normalize(app.weights(outlined)) : null;
    const came = selected + 1 < letters.length ? ids[letters[selected + 1].first] : -1;
    const needed = [came, rival ? argmax(rival) : -1].filter((id) => id >= 0);
    const shown = likeliest(plain, ROWS, needed);
    rows.forEach((bar, index) => {
      bar.element.hidden = index >= shown.length;
      if (index < shown.length) bar.draw(shown[index], plain, chosen, rival, shown[index] === came);
    });
    const nats = entropy(chosen), press = isTouch() ? "Tap" : "Click";
    const hint = came < 0 ? `${press} a letter to continue with it.` : `A ${press.toLowerCase()} replaces the rest.`;
    note.replaceChildren(
      rival ? `Outlined: ${isOff ? "with all heads on" : named(app.payload.models[pinned ?? 0])}.` : hint,
      ` Entropy ${nats.toFixed(2)} `,
      term("nats"),
      `: ${sureness(nats)}.`,
    );
  }
  return { element, list, draw };
}

function row(app: App) {
  let token = 0;
  const letter = h("b"), before = h("span.before"), bar = h("span.bar"), tick = h("span.tick");
  const otherBar = h("span.other", { hidden: true }), value = h("span.value");
  const track = h("span.track", before, bar, tick, otherBar);
  const button = h("button", { onclick: () => app.continueWith(token) }, letter, track, value);
  const element = h("li", button);

  function draw(id: number, plain: Float64Array, chosen: Float64Array, rival: Float64Array | null, came: boolean) {
    token = id;
    const name = app.vocabulary.show(id);
    setText(letter, name);
    before.style.width = tick.style.left = `${100 * plain[id]}%`;
    bar.style.width = `${100 * chosen[id]}%`;
    tick.hidden = plain[id] >= chosen[id];
    otherBar.hidden = !rival || rival[id] < SMALL;
    if (rival) otherBar.style.width = `${100 * rival[id]}%`;
    setText(value, chosen[id] === 0 ? "out" : percent(chosen[id]));
    element.classList.toggle("came", came);
    element.classList.toggle("filtered", chosen[id] === 0);
    button.title = came ? "This letter came next" : "";
    const cameToo = came ? ", the letter that came" : "";
    button.setAttribute("aria-label", `Continue with ${name}, ${percent(chosen[id])}${cameToo}`);
  }
  return { element, draw };
}

function sureness(nats: number) {
  if (nats < 0.3) return "the choice is nearly certain";
  if (nats < 1) return "the choice is fairly certain";
  return nats < 2 ? "the choice is open" : "the choice is wide open";
}
