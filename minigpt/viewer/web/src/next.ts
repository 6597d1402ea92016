/** The panel of the next letter: its probabilities, what really came, and a click to continue with another letter. */

import { argmax, entropy, normalize, softmax } from "./filters.js";
import { glyph } from "./letters.js";
import { h, isTouch, named, percent, setText, term } from "./dom.js";
import { likeliest } from "./prediction.js";
import type { Filters } from "./filters.js";
import type { App, State } from "./app.js";

const ROWS = 5;
/** The maximum number of letters to quote in the title. */
const TAIL = 8;
/** A probability below which an outline would be as wide as its border. */
const SMALL = 0.005;
const FILTERS = [
  ["top_k", "top-k", 0, 20, 1, "Keep only the k most likely letters. 0 keeps all."],
  ["top_p", "top-p", 0.05, 1, 0.05, "Keep the most likely letters that together reach this probability."],
  ["min_p", "min-p", 0, 0.5, 0.01, "Keep letters that are at least this likely, relative to the most likely one."],
] as const;

export function nextPanel(app: App) {
  const tail = h("code");
  const rows = Array.from({ length: ROWS }, () => row(app));
  const list = h("ol.bars", ...rows.map(({ element }) => element));
  const note = h("p.note");
  const temperature = slider(app, "temperature", term("temperature"), 0, 2, 0.05);
  const filters = FILTERS.map(([name, label, min, max, step, help]) => slider(app, name, label, min, max, step, help));
  const summary = h("summary", "Filters");
  const more = h("details.filters", summary, h("div.popover", ...filters.map(({ element }) => element)));
  document.addEventListener("pointerdown", ({ target }) => {
    if (!more.contains(target as Node)) more.open = false;
  });
  const title = h("h2", "Next letter after ", tail);
  const settings = h("div.settings", temperature.element, more);
  const element = h("section.card.next", { "aria-label": "Next letter" }, title, list, note, settings);

  function draw(state: State) {
    const { letters, selected, ids } = state;
    const { look, other } = app;
    for (const part of [temperature, ...filters]) part.draw();
    const isCurrent = app.isCurrent();
    list.classList.toggle("stale", !isCurrent);
    if (!isCurrent) return; // the title and the bars change together
    const last = letters.slice(Math.max(0, selected + 1 - TAIL), selected + 1).map(({ text }) => glyph(text));
    setText(tail, last.join("").replace(/.*↵(?=.)/, ""));
    list.hidden = note.hidden = !look;
    if (!look) return; // the model does not answer for this letter
    const plain = softmax(look.logits);
    const chosen = normalize(app.weights(look));
    const isOff = other === null && app.muted.size > 0;
    const compared = app.fresh(other);
    const outlined = isOff ? look.whole && { ...look, logits: look.whole } : compared;
    const rival = outlined ? normalize(app.weights(outlined)) : null;
    const came = selected + 1 < letters.length ? ids[letters[selected + 1].first] : -1;
    const needed = [came, rival ? argmax(rival) : -1].filter((id) => id >= 0);
    const shown = likeliest(plain, ROWS, needed);
    rows.forEach((bar, index) => {
      bar.element.hidden = index >= shown.length;
      if (index < shown.length) bar.draw(shown[index], plain, chosen, rival, shown[index] === came);
    });
    const nats = entropy(chosen);
    const press = isTouch() ? "Tap" : "Click";
    const hint = came < 0 ? `${press} a letter to continue with it.` : `A ${press.toLowerCase()} replaces the rest.`;
    note.replaceChildren(
      rival ? `Outlined: ${isOff ? "with all heads on" : named(app.payload.models[other ?? 0])}.` : hint,
      ` Entropy ${nats.toFixed(2)} `,
      term("nats"),
      `: ${sureness(nats)}.`,
    );
  }
  return { element, list, draw };
}

/** A slider for a setting of sampling. */
function slider(
  app: App, name: keyof Filters, label: string | Node, min: number, max: number, step: number, help?: string,
) {
  const id = `set-${name}`;
  const oninput = () => app.set({ sampling: { ...app.state.sampling, [name]: Number(input.value) } });
  const input = h("input", { type: "range", id, min, max, step, oninput, "aria-describedby": help && `help-${name}` });
  const output = h("output", { for: id });
  const hint = help && h("span.hint", { id: `help-${name}` }, help);
  const element = h("div.slider", h("label", { for: id }, label), input, output, hint);
  function draw() {
    const value = app.state.sampling[name];
    input.value = String(value);
    setText(output, step === 1 ? String(value) : value.toFixed(2));
  }
  return { element, draw };
}

function row(app: App) {
  let token = 0;
  const letter = h("b");
  const before = h("span.before");
  const bar = h("span.bar");
  const tick = h("span.tick");
  const otherBar = h("span.other", { hidden: true });
  const value = h("span.value");
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
