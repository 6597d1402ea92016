/** The panel of heads: where each one looks for the selected letter, and what the model would say without it. */

import { argmax } from "./filters.js";
import { glyph } from "./letters.js";
import { color, h, named, paint, percent, setText, term, view, watch } from "./dom.js";
import { attentionRow, attentionShares, effectOf, letterOf, quoted, turns, wordOf } from "./views.js";
import type { Look } from "./answers.js";
import type { App, Head, State } from "./app.js";

/** The height of a strip of bars, in pixels. */
const STRIP = 20;
/** The maximum number of tiles side by side. */
const COLUMNS = 4;
/** A change of a probability that stands out. */
const LARGE = 0.05;
/** A change of a probability that counts as none. */
const SMALL = 0.01;
/** A head without which the first choice changes at more letters than this share breaks many letters. */
const MANY = 0.1;
/** The most sentences about what one head does to another. */
const TURNS = 2;

/** @param open opens a sheet about the chosen head */
export function headsPanel(app: App, open: { compute: () => void, matrix: () => void }) {
  const title = h("h2"), intro = h("p.note"), grid = h("div.layers"), changed = watch();
  const all = h("button.quiet", { onclick: () => app.mute([]) }, "Switch all on");
  const chosen = h("div.about", { role: "region", "aria-label": "The chosen head" });
  const element = h("section.card.heads", { "aria-label": "Heads" }, h("div.row", title, intro, all), grid, chosen);
  let tiles: ReturnType<typeof tile>[] = [];
  let built = -1, measured = -1, width = 0;

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
      const row = descriptions.map((_, head) => tile(app, { layer, head }));
      tiles.push(...row);
      const list = h("div.tiles", ...row.map(({ element }) => element));
      rove(row.flatMap(({ button, power }) => [button, power]));
      const lines = Math.ceil(row.length / COLUMNS);
      list.style.setProperty("--columns", String(Math.ceil(row.length / lines)));
      grid.append(h("div.layer", h("h3", layer ? `layer ${layer}` : term("layer", "layer 0")), list));
    });
    title.replaceChildren(`${tiles.length} `, term("heads", tiles.length === 1 ? "head" : "heads"));
  }

  function draw(state: State) {
    const run = app.moment >= 0 ? app.film[0] : state.model; // all moments share the tiles
    if (built !== run) build(run);
    if (built !== run || measured !== view.version || !width) width = tiles[0]?.canvas.clientWidth ?? 0;
    [built, measured] = [run, view.version];
    all.style.visibility = app.muted.size ? "visible" : "hidden"; // so that nothing moves
    for (const { draw } of tiles) draw(state, width);
    order();
    const rival = state.pinned === null ? null : app.payload.models[state.pinned];
    const bars = `Bars${rival?.heads.length ? ` down: ${named(rival)}; up` : ""}: where each one looks. `;
    const what = app.muted.size ? "what becomes of the whole model's choice" : "what the model would expect";
    if (changed(bars, what)) intro.replaceChildren(bars, term("without", "Without it"), `: ${what}.`);
    drawChosen(state);
  }

  /** On a narrow screen, the heads that this letter needs come first: those of the end of the film, all the time. */
  function order() {
    const look = app.film.length ? app.answers.look(app.end) : app.look;
    if (!look || tiles.some(({ index }) => !look.effects.has(index) && !look.muted.includes(index))) return;
    for (const { element, index } of tiles) {
      const effect = look.effects.get(index);
      const change = effect && effectOf(look, effect.logits, (x) => app.probabilities(x));
      element.style.setProperty("--order", (change ? 1000 * (change.after - change.before) : 0).toFixed(0));
    }
  }

  const compute = h("button", { onclick: open.compute }, "Compute this letter");
  const matrix = h("button", { onclick: open.matrix }, "At all letters");
  const name = h("b"), usually = h("span"), sentences = h("div");
  chosen.append(h("div", h("h3", name, usually), h("p.controls", compute, matrix)), sentences);
  const isNew = watch();

  function drawChosen({ model, letters, head }: State) {
    const { look } = app;
    chosen.hidden = !head || !app.has(model, head);
    if (!head || chosen.hidden || !isNew(model, head, look, look?.effects.size)) return;
    const { phrase, share, uniform, breaks } = app.model.heads[head.layer][head.head], index = app.index(head);
    chosen.style.setProperty("--hue", `var(--head-${head.head % 8})`);
    setText(name, `${head.layer}·${head.head} `);
    setText(usually, phrase && `usually: ${phrase}`);
    const at = (position: number) => quoted(letters, letterOf(letters, position + (look?.from ?? 0)));
    const moved = (look ? turns(look) : []).filter((turn) => turn.off === index || turn.head === index).slice(0, TURNS);
    sentences.replaceChildren(
      ...moved.map(({ off, head: other, from, to, before, after }) => {
        const [it, who] = off === index ? ["it", `head ${app.nameOf(other)}`] : [`head ${app.nameOf(off)}`, "it"];
        const where = `${at(to)} (${percent(after)}), and no longer at ${at(from)} (${percent(before)})`;
        return h("p.turn", `Without ${it}, ${who} looks at ${where}.`);
      }),
      h("p", share !== null && uniform !== null &&
        `Where it can, it gives this ${percent(share)} of its attention on average (${percent(uniform)} by chance).`),
      h("p", cost(breaks)),
    );
  }
  return { element, draw };
}

/** One stop of the Tab key for a row of buttons; arrow keys go along it. */
function rove(buttons: HTMLButtonElement[]) {
  buttons.forEach((button, i) => {
    button.tabIndex = i ? -1 : 0;
    button.addEventListener("focus", () => buttons.forEach((other) => (other.tabIndex = other === button ? 0 : -1)));
    button.addEventListener("keydown", ({ key }) => {
      const by = key === "ArrowRight" ? 1 : key === "ArrowLeft" ? -1 : 0;
      if (by) buttons[i + by]?.focus();
    });
  });
}

/** @param breaks the share of letters at which another letter wins without a head */
function cost(breaks: number) {
  return `Without this head, another letter wins at ${percent(breaks)} of the letters in the start text's second half.`;
}

function tile(app: App, head: Head) {
  const index = app.index(head), name = `${head.layer}·${head.head}`, hue = `--head-${head.head % 8}`;
  const letter = h("span"), word = h("span.word"), share = h("span");
  const canvas = h("canvas", { "aria-hidden": "true" }), changed = watch(), barsChanged = watch();
  const usually = h("span.usually"), without = h("span.without");
  const looks = h("span.looks", h("b", name), letter, word, share);
  const button = h("button.choose", { onclick: () => app.choose(head) }, looks, canvas, usually, without);
  const power = h("button.switch", {
    role: "switch",
    "aria-label": `Head ${name}`,
    title: "Switch this head off or on",
    onclick: () => app.toggle(head),
  });
  const element = h("div.tile", button, power);
  element.style.setProperty("--hue", `var(${hue})`);
  element.addEventListener("pointerenter", ({ pointerType }) => pointerType === "mouse" && app.set({ preview: head }));
  element.addEventListener("pointerleave", () => app.set({ preview: null }));

  function draw(state: State, width: number) {
    const { look } = app, effect = look?.effects.get(index), rival = app.fresh(state.pinned), { head: chosen } = state;
    const isMuted = app.muted.has(index), isChosen = chosen?.layer === head.layer && chosen.head === head.head;
    const { isWriting } = app.writer, count = app.muted.size, isCurrent = app.isCurrent();
    const shown = [app.model, look, effect, rival, isCurrent, isMuted, isChosen, isWriting, count, width];
    if (!changed(...shown, state.sampling)) return;
    const { phrase, breaks } = app.model.heads[head.layer][head.head];
    setText(usually, phrase && `usually: ${phrase}`);
    without.title = cost(breaks);
    element.classList.toggle("chosen", isChosen);
    element.classList.toggle("muted", isMuted);
    element.classList.toggle("stale", !isCurrent);
    button.setAttribute("aria-pressed", String(isChosen));
    power.setAttribute("aria-checked", String(!isMuted));
    if (look && barsChanged(look, rival, isMuted, width)) drawBars(look, rival, state, width);
    const change = look && effect && !isMuted && effectOf(look, effect.logits, (x) => app.probabilities(x));
    if (change) drawEffect(change, count, breaks);
    else setText(without, isMuted ? "switched off" : isWriting ? "" : "without it: …");
  }

  function drawBars(look: Look, rival: Look | null, { letters }: State, width: number) {
    const shares = attentionShares(letters, look, index), strongest = argmax(shares);
    setText(letter, `“${glyph(letters[strongest].text)}”`);
    setText(word, wordOf(letters, strongest).replace(/^./u, "of $&"));
    setText(share, percent(shares[strongest]));
    const rows = [attentionRow(look, index)];
    if (rival && app.has(rival.model, head)) rows.push(attentionRow(rival, app.index(head, rival.model)));
    strip(canvas, rows, Math.max(look.ids.length, 24), width || 200, color(hue));
  }

  /** Say what the model would expect without this head. @param off the number of heads that are off
   * @param cost the share of letters at which another one wins without it */
  function drawEffect(effect: ReturnType<typeof effectOf>, off: number, cost: number) {
    const { expected, before, after, winner, share, breaks } = effect, isLarge = Math.abs(after - before) >= LARGE;
    if (Math.abs(after - before) < SMALL && !breaks) {
      return setText(without, `without it: no change${cost > MANY ? " at this letter" : ""}`);
    }
    const change = `${app.vocabulary.show(expected)} ${percent(before)} → `;
    const now = breaks && ` now ${app.vocabulary.show(winner)} ${percent(share)}`;
    const kind = !isLarge ? "span" : breaks && !off ? "b.breaks" : "b";
    without.replaceChildren("without it: ", change, h(kind, percent(after)), ...(now ? [now] : []));
  }
  return { element, canvas, button, power, index, draw };
}

/** Draw attention weights as bars over the positions of the window; those of a second model hang below. */
function strip(canvas: HTMLCanvasElement, rows: Float32Array[], count: number, width: number, hue: string) {
  const context = paint(canvas, width, STRIP), base = STRIP / rows.length, space = width / count;
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
