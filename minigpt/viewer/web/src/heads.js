/** The panel of heads: where each one looks for the selected letter, and what the model would say without it. */

import { argmax } from "./filters.js";
import { glyph } from "./letters.js";
import { color, h, paint, percent, setText, table, term } from "./dom.js";
import { attentionRow } from "./text.js";

const STRIP = 34;
/** A fall of a probability that is shown in red. */
const LARGE = 0.1;
/** A change of a probability that counts as none. */
const SMALL = 0.01;
const EXPLANATION =
  "Measured on validation text, or on the text above if there is none. Uniform: if the head looked everywhere " +
  "equally. The lines overlap, since a letter can be the previous one and the start of the word.";

/** @param {import("./app.js").App} app
 * @param {HTMLElement} strip the next letters, in view as long as the heads are
 * @param {{compute: () => void, matrix: () => void}} open opens a sheet about the chosen head */
export function headsPanel(app, strip, open) {
  const title = h("h2");
  const all = h("button.quiet", { onclick: () => app.mute([]) }, "Switch all on");
  const intro = h("p.note");
  const grid = h("div.layers");
  const chosen = h("div.chosen", { role: "region", "aria-label": "The chosen head" });
  const row = h("div.row", title, strip, all);
  const element = h("section.card.heads", { "aria-label": "Heads" }, row, intro, grid, chosen);
  /** @type {ReturnType<typeof tile>[]} */
  let tiles = [];
  let built = -1;
  let described = "";

  /** @param {number} model */
  function build(model) {
    const { config, heads } = app.payload.models[model];
    built = model;
    tiles = [];
    grid.replaceChildren();
    intro.hidden = !heads.length;
    setText(intro, "Bars: where each one looks. Switch one off to see what it is for.");
    if (!heads.length) {
      title.replaceChildren(`This ${config.family.toUpperCase()} has no heads`);
      const why = "A recurrent network does not look back at letters: it keeps all that it remembers in one vector.";
      return grid.append(h("p.note", why));
    }
    const count = config.n_layer * config.n_head;
    title.replaceChildren(`${count} `, term("heads", count === 1 ? "head" : "heads"));
    for (const layer of heads.keys()) {
      const row = heads[layer].map(({ phrase }, head) => tile(app, { layer, head }, phrase));
      tiles.push(...row);
      const name = h("h3", layer ? `layer ${layer}` : term("layer", "layer 0"));
      grid.append(h("div.layer", name, h("div.tiles", ...row.map((one) => one.element))));
    }
  }

  /** @param {import("./app.js").State} state */
  function draw(state) {
    if (built !== state.model) build(state.model);
    const look = app.look;
    all.style.visibility = app.muted.size ? "visible" : "hidden"; // so that nothing moves
    const plain = look && app.probabilities(look.logits);
    for (const one of tiles) one.draw(state, look, plain);
    drawChosen(state);
  }

  /** @param {import("./app.js").State} state */
  function drawChosen(state) {
    const head = app.model.heads.length ? state.head : null;
    chosen.hidden = !head;
    const key = head ? `${state.model} ${head.layer} ${head.head}` : "";
    if (!head || key === described) return;
    described = key;
    const { phrase, evidence } = app.model.heads[head.layer][head.head];
    chosen.style.setProperty("--hue", `var(--head-${head.head % 8})`);
    const rows = evidence.map(({ label, value, uniform }) => [label, figure(value, label), figure(uniform, label)]);
    const buttons = [
      h("button", { onclick: open.compute }, "Compute this letter"),
      h("button", { onclick: open.matrix }, "At all letters"),
    ];
    chosen.replaceChildren(
      h("div", h("h3", ...called(head, phrase)), h("p.controls", ...buttons), h("p.note", EXPLANATION)),
      table("scores", ["on average", "this head", "uniform"], rows),
    );
  }
  return { element, draw };
}

/** @param {import("./app.js").Head} head @param {string} phrase what it does at most letters */
function called({ layer, head }, phrase) {
  return [h("b", `${layer}·${head} `), `usually: ${phrase}`];
}

/** @param {number} value @param {string} label */
function figure(value, label) {
  return /distance|entropy/.test(label) ? value.toFixed(value < 10 ? 2 : 1) : percent(value);
}

/** @param {import("./app.js").App} app @param {import("./app.js").Head} head @param {string} phrase */
function tile(app, head, phrase) {
  const index = app.index(head);
  const canvas = h("canvas", { "aria-hidden": "true" });
  const looks = h("span.looks");
  const without = h("span.without");
  const content = [canvas, h("span.phrase", ...called(head, phrase)), looks, without];
  const button = h("button.choose", { onclick: () => app.choose(head) }, ...content);
  const power = h("button.switch", {
    role: "switch",
    "aria-label": `Head ${head.layer}·${head.head}`,
    title: "Switch this head off or on",
    onclick: () => app.toggle(head),
  });
  const element = h("div.tile", button, power);
  element.style.setProperty("--hue", `var(--head-${head.head % 8})`);

  /** @param {import("./app.js").State} state
   * @param {import("./app.js").Look | null} look @param {Float64Array | null} plain */
  function draw(state, look, plain) {
    const isMuted = app.muted.has(index);
    const isChosen = state.head?.layer === head.layer && state.head.head === head.head;
    element.classList.toggle("chosen", isChosen);
    element.classList.toggle("muted", isMuted);
    button.setAttribute("aria-pressed", String(isChosen));
    power.setAttribute("aria-checked", String(!isMuted));
    if (!look || !plain) {
      canvas.width = 0;
      setText(looks, "");
      return setText(without, "");
    }
    const row = attentionRow(app, look, head);
    strip(canvas, row, look.ids.length, `--head-${head.head % 8}`);
    const strongest = argmax(row);
    setText(looks, `here: “${glyphAt(app, look, strongest)}” ${percent(row[strongest])}`);
    effect(without, state, look, plain, isMuted);
  }

  /** Say what the model would expect without this head: how likely the letter that the whole model expects would be,
   * and which letter would be the most likely instead.
   * @param {HTMLElement} out @param {import("./app.js").State} state @param {import("./app.js").Look} look
   * @param {Float64Array} plain the probabilities with the heads that are on @param {boolean} isMuted */
  function effect(out, state, look, plain, isMuted) {
    const logits = look.effects.get(index);
    if (isMuted) return setText(out, "switched off");
    if (!logits) return setText(out, state.isWriting ? "" : "without it: …");
    const without = app.probabilities(logits);
    const expected = argmax(look.whole ?? plain);
    const winner = argmax(without);
    const isOther = ![expected, argmax(plain)].includes(winner);
    const change = without[expected] - plain[expected];
    if (Math.abs(change) < SMALL && !isOther) return setText(out, "without it: no change");
    const share = h("b", { class: change < -LARGE ? "large" : "" }, percent(without[expected]));
    const before = `${app.vocabulary.show(expected)} ${percent(plain[expected])} → `;
    out.replaceChildren("without it: ", h("span", before, share, isOther && ","), " ");
    if (isOther) out.append(h("span", `now ${app.vocabulary.show(winner)} ${percent(without[winner])}`));
  }
  return { element, draw };
}

/** @param {import("./app.js").App} app @param {import("./app.js").Look} look @param {number} t */
function glyphAt(app, look, t) {
  const letter = app.state.letters.find((one) => one.last >= t + look.from);
  return letter ? glyph(letter.text) : app.vocabulary.show(look.ids[t]);
}

/** Draw attention weights as bars over the positions of the window.
 * @param {HTMLCanvasElement} canvas @param {Float32Array} row @param {number} length @param {string} hue */
function strip(canvas, row, length, hue) {
  const width = canvas.clientWidth || 200;
  const context = paint(canvas, width, STRIP);
  context.fillStyle = color(hue);
  const space = width / Math.max(length, 24);
  const bar = Math.max(1, space - (space > 4 ? 1 : 0.25));
  for (let t = 0; t < row.length; t++) {
    const height = Math.max(row[t] > 0.004 ? 1 : 0.5, row[t] * STRIP);
    context.fillRect(t * space, STRIP - height, bar, height);
  }
}
