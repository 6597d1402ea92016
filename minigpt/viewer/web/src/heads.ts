/** The panel of heads: where each one looks for the selected letter, and what the model would say without it. */

import { argmax } from "./filters.js";
import { glyph } from "./letters.js";
import { color, h, named, paint, percent, setText, table, term } from "./dom.js";
import { effectOf } from "./prediction.js";
import { attentionRow, attentionShares, letterOf, wordOf } from "./shading.js";
import type { Look } from "./answers.js";
import type { App, Head, State } from "./app.js";

/** The height of a strip of bars, in pixels. */
const STRIP = 24;
/** The maximum number of tiles side by side. */
const COLUMNS = 4;
/** A change of a probability that stands out. */
const LARGE = 0.05;
/** A change of a probability that counts as none. */
const SMALL = 0.01;
/** The number of averages to write as sentences. */
const SENTENCES = 3;
/** A head without which the first choice changes at more letters than this share breaks many letters. */
const MANY = 0.1;
const INTRODUCTION = "Bars: where each head looks. Switch a head off to see what it does.";
const EXPLANATION =
  "Measured on validation text, or on the text above if there is none. Uniform: if the head looked everywhere " +
  "equally. The lines overlap, since a letter can be the previous one and the start of the word.";

/** @param open opens a sheet about the chosen head @param only the heads to show; null: all */
export function headsPanel(app: App, open: { compute: () => void, matrix: () => void }, only: Head[] | null) {
  const title = h("h2");
  const all = h("button.quiet", { onclick: () => app.mute([]) }, "Switch all on");
  const intro = h("p.note");
  const grid = h("div.layers");
  const chosen = h("div.about", { role: "region", "aria-label": "The chosen head" });
  const element = h("section.card.heads", { "aria-label": "Heads" }, h("div.row", title, intro, all), grid, chosen);
  let tiles: ReturnType<typeof tile>[] = [];
  let built = -1;
  let described = "";

  function build(model: number) {
    const { config, heads } = app.payload.models[model];
    tiles = [];
    grid.replaceChildren();
    intro.hidden = !heads.length;
    if (!heads.length) {
      title.replaceChildren(`This ${config.family.toUpperCase()} has no heads`);
      const why = "A recurrent network does not look back at letters: it keeps all that it remembers in one vector.";
      return grid.append(h("p.note", why));
    }
    heads.forEach((descriptions, layer) => {
      const shown = descriptions.map((_, head) => ({ layer, head })).filter((head) => !only || only.some(isSame(head)));
      if (!shown.length) return;
      const row = shown.map((head) => tile(app, head));
      tiles.push(...row);
      const list = h("div.tiles", ...row.map(({ element }) => element));
      const lines = Math.ceil(row.length / COLUMNS);
      list.style.setProperty("--columns", String(Math.ceil(row.length / lines)));
      grid.append(h("div.layer", h("h3", layer ? `layer ${layer}` : term("layer", "layer 0")), list));
    });
    title.replaceChildren(`${tiles.length} `, term("heads", tiles.length === 1 ? "head" : "heads"));
  }

  function draw(state: State) {
    const run = app.moment >= 0 ? app.film[0] : state.model; // all moments share the tiles
    if (built !== run) build(run);
    built = run;
    all.style.visibility = app.muted.size ? "visible" : "hidden"; // so that nothing moves
    const changes = tiles.map(({ draw }) => draw(state));
    if (changes.every((change) => change !== null)) {
      tiles.forEach(({ element }, i) => element.style.setProperty("--order", (1000 * (changes[i] ?? 0)).toFixed(0)));
    }
    const rival = app.other === null ? null : app.payload.models[app.other];
    setText(intro, rival?.heads.length ? `Bars up: where each one looks; down: in ${named(rival)}.` : INTRODUCTION);
    drawChosen(state);
  }

  function drawChosen(state: State) {
    const head = app.model.heads.length ? state.head : null;
    chosen.hidden = !head || Boolean(only);
    const key = head ? `${state.model} ${head.layer} ${head.head}` : "";
    if (!head || key === described) return;
    described = key;
    const { phrase, evidence, breaks } = app.model.heads[head.layer][head.head];
    chosen.style.setProperty("--hue", `var(--head-${head.head % 8})`);
    const rows = evidence.map(({ label, value, uniform }) => [label, figure(value, label), figure(uniform, label)]);
    const sentences = rows.slice(0, SENTENCES).map(([label, value, uniform]) => {
      return h("p", h("b", value), ` of its ${label.replace("attention", "attention goes")} (uniform: ${uniform}).`);
    });
    const buttons = [
      h("button", { onclick: open.compute }, "Compute this letter"),
      h("button", { onclick: open.matrix }, "At all letters"),
    ];
    const scores = table("scores", ["on average", "this head", "uniform"], rows);
    const details = h("details", h("summary", "All averages"), scores, h("p.note", EXPLANATION));
    chosen.replaceChildren(
      h("div", h("h3", h("b", `${head.layer}·${head.head} `), `usually: ${phrase}`), h("p.controls", ...buttons)),
      h("div", ...sentences, h("p", cost(breaks)), details),
    );
  }
  return { element, draw };
}

function isSame({ layer, head }: Head): (other: Head | null) => boolean {
  return (other) => other?.layer === layer && other.head === head;
}

/** @param breaks the share of letters at which another letter wins without a head */
function cost(breaks: number) {
  return `Without this head, another letter is the likeliest at ${percent(breaks)} of the second half of the text.`;
}

function figure(value: number, label: string) {
  return /distance|entropy/.test(label) ? value.toFixed(value < 10 ? 2 : 1) : percent(value);
}

function tile(app: App, head: Head) {
  const index = app.index(head);
  const name = `${head.layer}·${head.head}`;
  const hue = `--head-${head.head % 8}`;
  const letter = h("span"), word = h("span.word"), share = h("span");
  const tag = h("span.tag");
  const canvas = h("canvas", { "aria-hidden": "true" });
  const without = h("span.without");
  const title = h("span.looks", h("b", name), letter, word, share);
  const usually = h("span.usually");
  const button = h("button.choose", { onclick: () => app.choose(head) }, title, tag, canvas, usually, without);
  const power = h("button.switch", {
    role: "switch",
    "aria-label": `Head ${name}`,
    title: "Switch this head off or on",
    onclick: () => app.toggle(head),
  });
  const element = h("div.tile", button, power);
  element.style.setProperty("--hue", `var(${hue})`);
  element.addEventListener("pointerenter", ({ pointerType }) => pointerType === "mouse" && app.set({ preview: head }));
  element.addEventListener("pointerleave", () => app.set({ preview: null, pointed: -1 }));
  canvas.addEventListener("pointermove", ({ pointerType, offsetX }) => {
    const { look } = app;
    if (!look || pointerType !== "mouse") return;
    const token = look.from + Math.floor((offsetX / canvas.clientWidth) * columns(look));
    app.set({ pointed: letterOf(app.state.letters, token) });
  });
  canvas.addEventListener("pointerleave", () => app.set({ pointed: -1 }));

  /** Returns how much the probability of the expected letter changes without the head, if it is on and this is known. */
  function draw(state: State) {
    const { look } = app, { phrase, breaks } = app.model.heads[head.layer][head.head];
    setText(usually, `usually: ${phrase}`);
    setText(tag, breaks > MANY ? "breaks many" : "breaks this");
    tag.title = cost(breaks);
    const isMuted = app.muted.has(index);
    const isChosen = isSame(head)(state.head);
    element.classList.toggle("chosen", isChosen);
    element.classList.toggle("muted", isMuted);
    button.setAttribute("aria-pressed", String(isChosen));
    power.setAttribute("aria-checked", String(!isMuted));
    element.classList.toggle("stale", !app.isCurrent());
    if (look) drawBars(look, state);
    const logits = look?.effects.get(index);
    const effect = look && logits && !isMuted ? effectOf(look, logits, (x) => app.probabilities(x)) : null;
    tag.hidden = true;
    if (effect) drawEffect(effect);
    else setText(without, isMuted ? "switched off" : app.writer.isWriting ? "" : "without it: …");
    return effect && effect.after - effect.before;
  }

  function drawBars(look: Look, state: State) {
    const shares = attentionShares(state.letters, look, index);
    const strongest = argmax(shares);
    setText(letter, `“${glyph(state.letters[strongest].text)}”`);
    setText(word, wordOf(state.letters, strongest).replace(/^./u, "of $&"));
    setText(share, percent(shares[strongest]));
    const rows = [attentionRow(look, index)];
    const other = app.fresh(app.other);
    if (other && app.has(other.model, head)) rows.push(attentionRow(other, app.index(head, other.model)));
    strip(canvas, rows, columns(look), color(canvas, hue));
  }

  /** Say what the model would expect without this head. */
  function drawEffect({ expected, before, after, winner, share, breaks }: ReturnType<typeof effectOf>) {
    const change = Math.abs(after - before), isLarge = change >= LARGE;
    tag.hidden = !(breaks && isLarge);
    if (change < SMALL && !breaks) return setText(without, "without it: no change");
    const kind = !isLarge ? "span" : breaks ? "b.breaks" : "b";
    const now = breaks && h("span", `, now ${app.vocabulary.show(winner)} ${percent(share)}`);
    const numbers = [`${app.vocabulary.show(expected)} ${percent(before)} → `, h(kind, percent(after))];
    without.replaceChildren("without it: ", ...numbers, ...(now ? [now] : []));
  }
  return { element, draw };
}

/** The number of bars that a strip has room for. */
function columns({ ids }: Look) {
  return Math.max(ids.length, 24);
}

/** Draw attention weights as bars over the positions of the window; those of a second model hang below.
 * @param count of bars */
function strip(canvas: HTMLCanvasElement, rows: Float32Array[], count: number, hue: string) {
  const width = canvas.clientWidth || 200;
  const context = paint(canvas, width, STRIP);
  const base = STRIP / rows.length, space = width / count;
  const bar = Math.max(1, space - (space > 4 ? 1 : 0.25));
  context.fillStyle = hue;
  rows.forEach((row, i) => {
    row.forEach((share, t) => {
      const height = Math.max(share > 0.004 ? 1 : 0.5, share * base);
      context.fillRect(t * space, i ? base : base - height, bar, height);
    });
    context.globalAlpha = 0.6;
  });
}
