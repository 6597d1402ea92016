/** The panel of the next letter: its probabilities, what really came, and a click to continue with another letter. */

import { argmax, entropy, normalize, softmax } from "./filters.js";
import { glyph } from "./letters.js";
import { h, named, percent, setText, term } from "./dom.js";

const ROWS = 7;
/** Letters to name where the bars are out of view. */
const BEST = 3;
/** A probability below which an outline would be as wide as its border. */
const SMALL = 0.005;
const SLIDERS = /** @type {const} */ ([
  ["temperature", "temperature", 0, 2, 0.05, "Pale bars: at temperature 1, without filters."],
  ["top_k", "top-k", 0, 20, 1, "Keep only the k most likely letters. 0 keeps all."],
  ["top_p", "top-p", 0.05, 1, 0.05, "Keep the most likely letters that together reach this probability."],
  ["min_p", "min-p", 0, 0.5, 0.01, "Keep letters that are at least this likely, relative to the most likely one."],
]);

/** @param {import("./app.js").App} app */
export function nextPanel(app) {
  const title = h("h2");
  const strip = h("p.note");
  const rows = Array.from({ length: ROWS }, () => row(app));
  const list = h("ol.bars", ...rows.map(({ element }) => element));
  const note = h("p.note");
  const sliders = SLIDERS.map(([name, label, min, max, stepSize, help]) => {
    const input = h("input", {
      type: "range",
      id: `set-${name}`,
      min,
      max,
      step: stepSize,
      "aria-describedby": `help-${name}`,
      oninput: () => app.set({ sampling: { ...app.state.sampling, [name]: Number(input.value) } }),
    });
    const output = h("output", { for: `set-${name}` });
    const hint = h("span.hint", { id: `help-${name}` }, help);
    const element = h("div.slider", h("label", { for: `set-${name}` }, label), input, output, hint);
    return { name, input, output, element };
  });
  const [temperature, ...filters] = sliders;
  const more = h("details", h("summary", "Filters"), ...filters.map((slider) => slider.element));
  const element = h("section.card.next", { "aria-label": "Next letter" }, title, list, note, temperature.element, more);

  /** @param {import("./app.js").State} state */
  function draw(state) {
    const { letters, selected, sampling } = state;
    const look = app.look;
    for (const { name, input, output } of sliders) {
      input.value = String(sampling[name]);
      setText(output, input.step === "1" ? String(sampling[name]) : sampling[name].toFixed(2));
    }
    if (look?.id !== app.asked[state.model]?.id) return; // the title and the bars change together
    const tail = letters.slice(Math.max(0, selected - 5), selected + 1).map(({ text }) => glyph(text));
    const after = `after “${tail.join("").replace(/.*↵(?=.)/, "")}”`;
    setText(title, `Next letter ${after}`);
    list.hidden = note.hidden = !look;
    if (!look) return setText(strip, ""); // the model does not answer for this letter
    const plain = softmax(look.logits);
    const chosen = normalize(app.weights(look));
    const isOff = state.other === null && app.muted.size > 0;
    const compared = state.looks[state.other ?? -1];
    const isNew = compared?.id === app.asked[state.other ?? -1]?.id;
    const outlined = isOff ? look.whole && { ...look, logits: look.whole } : isNew && compared;
    const other = outlined ? normalize(app.weights(outlined)) : null;
    const order = Array.from(plain.keys()).sort((a, b) => plain[b] - plain[a]);
    const came = selected + 1 < letters.length ? state.ids[letters[selected + 1].first] : -1;
    const shown = order.slice(0, ROWS);
    const needed = [...new Set([came, other ? argmax(other) : -1])].filter((id) => id >= 0 && !shown.includes(id));
    shown.splice(ROWS - needed.length, needed.length, ...needed);
    const best = order.slice(0, BEST).map((id) => `${app.vocabulary.show(id)} ${percent(chosen[id])}`);
    setText(strip, `${after}: ${best.join(", ")}`);
    rows.forEach((bar, index) => {
      bar.element.hidden = index >= shown.length;
      if (index < shown.length) bar.draw(shown[index], plain, chosen, other, shown[index] === came);
    });
    const nats = entropy(chosen);
    const hint = came < 0 ? "Click a letter to continue with it." : "A click replaces the rest of the text.";
    note.replaceChildren(
      other ? `Outlined: ${isOff ? "with all heads on" : named(app.payload.models[state.other ?? 0])}.` : hint,
      " Entropy ",
      nats.toFixed(2),
      " ",
      term("nats"),
      `: ${sureness(nats)}.`,
    );
  }
  return { element, draw, strip };
}

/** @param {import("./app.js").App} app */
function row(app) {
  let token = 0;
  const letter = h("b");
  const before = h("span.before");
  const bar = h("span.bar");
  const otherBar = h("span.other", { hidden: true });
  const value = h("span.value");
  const mark = h("span.came", { hidden: true }, "came");
  const track = h("span.track", before, bar, otherBar);
  const button = h("button", { onclick: () => app.continueWith(token) }, letter, track, value, mark);
  const element = h("li", button);

  /** @param {number} id @param {Float64Array} plain @param {Float64Array} chosen
   * @param {Float64Array | null} other @param {boolean} came */
  function draw(id, plain, chosen, other, came) {
    token = id;
    const name = app.vocabulary.show(id);
    setText(letter, name);
    before.style.width = `${100 * plain[id]}%`;
    bar.style.width = `${100 * chosen[id]}%`;
    otherBar.hidden = !other || other[id] < SMALL;
    if (other) otherBar.style.width = `${100 * other[id]}%`;
    setText(value, chosen[id] === 0 ? "out" : percent(chosen[id]));
    mark.hidden = !came;
    element.classList.toggle("filtered", chosen[id] === 0);
    const cameToo = came ? ", the letter that came" : "";
    button.setAttribute("aria-label", `Continue with ${name}, ${percent(chosen[id])}${cameToo}`);
  }
  return { element, draw };
}

/** @param {number} nats */
function sureness(nats) {
  if (nats < 0.3) return "the choice is nearly certain";
  if (nats < 1) return "the choice is fairly certain";
  return nats < 2 ? "the choice is open" : "the choice is wide open";
}
