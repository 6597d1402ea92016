/** The strip of the film: a handle for the step, the learning curve of the next letter, and lanes of heads. */

import { LANES, storyOf } from "./film.js";
import { explained, h, percent, setText, view, watch } from "./dom.js";
import type { App, State } from "./app.js";
import type { Story } from "./film.js";

/** Pixels: height of the curves, of the line above the lanes, of a lane and of the steps, and the margins. */
const HEIGHT = 52, LINE = 14, LANE = 12, STEPS = 16, TOP = 10, RIGHT = 24;
/** Pixels for the names of lanes, and the width of a plot that has room for their words. */
const LEFT = 132, NARROW = 64, WIDE = 600;
const ABOUT_LANES = "At most three heads, without which the chance falls most at the last step, by 5 points " +
  "or more. The letter of a head is the one that it looks at most there. Dark: it looked there at that step, even if " +
  "it was not needed yet.";
/** The height of a window that has no room for lanes, in pixels, and the least opacity of a part of a lane. */
const LOW = 704, PALE = 0.06;
/** Milliseconds of the whole film. */
const PLAYS = 6000;
/** Pixels that a finger moves sideways before it moves the handle. */
const SIDEWAYS = 6;

/** Create an element of a drawing. */
function shape(name: string, attributes: Record<string, string | number> = {}, ...children: Node[]) {
  const element = set(document.createElementNS("http://www.w3.org/2000/svg", name), attributes);
  element.append(...children);
  return element;
}

function set<E extends Element>(element: E, attributes: Record<string, string | number>) {
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  return element;
}

export function stripPanel(app: App, pin: HTMLElement) {
  const { film, payload } = app, steps = film.map((index) => payload.models[index].step), last = steps.length - 1;
  const { n_head } = payload.models[film[0]].config, hasHeads = payload.models[film[0]].heads.length > 0;
  const number = (step: number) => step.toLocaleString("en");
  const step = h("b"), loss = h("span"), chanceOf = h("span"), event = h("button.event", { onclick: () => jump() });
  const about = `A step changes all parameters once, to predict ${number(payload.batch)} letters better. ` +
    `The film shows ${film.length} steps, equally far apart: those between which predictions changed most.`;
  const chance = explained(chanceOf, "The probability of this letter, at the temperature that is set above.");
  const lossKey = payload.losses.length > 0 && h("span.key", h("i.loss"), "loss");
  const keys = h("span.legend", h("span.key", h("i.chance"), chance), lossKey);
  const caption = h("p.line", explained(step, about), loss, pin, event, keys);
  const play = h("button.play", { "aria-label": "Play the film", onclick: toggle }, "▶");
  const slider = h("input", {
    type: "range", min: 0, max: last, step: 1, "aria-label": "Step of training",
    oninput: () => (stop(), go(Number(slider.value))),
  });
  const top = HEIGHT + LINE;
  const losses = payload.losses.filter(([step]) => step <= steps[last]);
  const highest = losses.reduce((most, [, loss]) => Math.max(most, loss), 1e-9);
  const lossLine = shape("polyline", { class: "loss" }), chanceLine = shape("polyline", { class: "chance" });
  const dots = steps.map(() => shape("circle"));
  const lanes = Array.from({ length: hasHeads ? LANES : 0 }, (_, row) => lane(row));
  const needed = h("span", "Heads this letter needs. Darker: looks more", h("i", " at its letter"));
  const none = h("span", "No head alone decides this letter");
  const legend = h("p.lanes", explained(h("span", needed, none), ABOUT_LANES));
  const ticks = steps.map((step) => shape("text", { "text-anchor": "middle" }, new Text(number(step))));
  const ends = ["100%", "0%"].map((text) => shape("text", { "text-anchor": "end" }, new Text(text)));
  const ghost = handle("ghost"), knob = handle("handle");
  const known = shape("g", {}, chanceLine, ...dots, ...lanes.map(({ group }) => group));
  const drawing = shape("svg", { "aria-hidden": "true" }, ...ends, lossLine, known, ...ticks, ghost, knob);
  const plot = h("div.plot", slider, drawing, hasHeads && legend);
  const element = h("section.card.strip", { "aria-label": "Film of the training" }, caption, h("div.reel", play, plot));
  const changed = watch();
  let timer = 0, story: Story | undefined, width = 0, measured = -1;

  /** The parts of a lane. They stay, so that a click is not lost. */
  function lane(row: number) {
    const y = top + row * LANE;
    const name = shape("text", { class: "name", y: y + 9, "text-anchor": "end" });
    const parts = steps.map(() => shape("rect", { class: "lane", y, height: LANE - 3 }));
    name.addEventListener("click", () => {
      const { head } = (story as Story).lanes[row];
      app.choose({ layer: Math.floor(head / n_head), head: head % n_head });
    });
    return { group: shape("g", {}, name, ...parts), name, parts };
  }

  const go = (moment: number) => app.moveTo(film[Math.min(last, Math.max(0, moment))]);
  const jump = () => (stop(), go(story?.event ?? -1));

  function toggle() {
    if (timer) return stop();
    if (app.moment === last) go(0);
    timer = window.setInterval(() => {
      if (app.isCurrent()) go(app.moment + 1); // otherwise, wait for it
      if (app.moment === last || document.hidden) stop();
    }, PLAYS / last);
    app.set({});
  }
  function stop() {
    clearInterval(timer);
    timer = 0;
    app.set({});
  }

  /** Move by this number of moments. */
  function move(by: number) {
    if (app.moment < 0) return;
    stop();
    go(app.moment + by);
  }

  const left = () => (width < WIDE ? NARROW : LEFT);
  /** Where a moment is, in pixels: all are equally far apart, since most is learned early. */
  const x = (moment: number) => left() + (moment / last) * (width - left() - RIGHT);
  /** Where a step is, between its moments. */
  function xOf(step: number) {
    const next = Math.max(1, steps.findIndex((other) => other >= step));
    return x(next - 1 + (step - steps[next - 1]) / (steps[next] - steps[next - 1]));
  }

  let pressed = NaN; // where a finger came down
  plot.addEventListener("pointerdown", (event) => {
    if ((event.target as Element).closest(".name, .lanes")) return;
    stop();
    pressed = event.clientX;
    if (event.pointerType === "mouse") drag(event);
  });
  plot.addEventListener("pointermove", (event) => {
    if (plot.hasPointerCapture(event.pointerId) || Math.abs(event.clientX - pressed) > SIDEWAYS) drag(event);
  });
  plot.addEventListener("pointerup", (event) => {
    if (!Number.isNaN(pressed)) drag(event);
    pressed = NaN;
  });
  plot.addEventListener("pointercancel", () => (pressed = NaN)); // the page scrolls
  /** Go to the moment nearest to the pointer. */
  function drag(event: PointerEvent) {
    if (event.type !== "pointerup") plot.setPointerCapture(event.pointerId);
    const part = (event.clientX - plot.getBoundingClientRect().left - left()) / (width - left() - RIGHT);
    go(Math.round(part * last));
    slider.focus({ preventScroll: true });
    event.preventDefault();
  }

  function draw(state: State) {
    const { moment } = app;
    element.hidden = moment < 0; // a model of another run is shown
    if (moment < 0) return timer ? stop() : undefined;
    story = storyOf(app, story);
    if (measured !== view.version || !width) width = plot.clientWidth;
    measured = view.version;
    const { curve: { values }, letter, sentence, isOld } = story;
    const before = app.film.indexOf(state.pinned ?? -1);
    if (!changed(moment, timer, before, sentence, isOld, letter, width, story.isComplete, ...values)) return;
    known.classList.toggle("stale", isOld);
    setText(step, `Step ${number(steps[moment])} of ${number(steps[last])}`);
    const [, value] = payload.losses.filter(([step]) => step <= steps[moment]).at(-1) ?? [];
    setText(loss, value === undefined ? "" : `loss ${value.toFixed(2)}`);
    setText(event, sentence && `Step ${number(steps[story.event])}: ${sentence}`);
    event.hidden = !sentence;
    setText(chanceOf, `chance of ${letter}`);
    slider.value = String(moment);
    const chance = Number.isNaN(values[moment]) ? "" : `, chance of ${letter} ${percent(values[moment])}`;
    slider.setAttribute("aria-valuetext", `${step.textContent}, ${loss.textContent}${chance}. ${event.textContent}`);
    setText(play, timer ? "❚❚" : "▶");
    play.setAttribute("aria-label", timer ? "Pause the film" : "Play the film");
    if (width > LEFT + RIGHT) drawPlot(story, moment, before);
  }

  function drawPlot({ curve: { values }, lanes: rows }: Story, moment: number, pinned: number) {
    const y = (share: number) => TOP + (1 - share) * (HEIGHT - 2 * TOP);
    const line = (points: number[][]) => ({ points: points.map((point) => point.join(",")).join(" ") });
    const points = values.map((value, i) => [x(i), y(value)]), isOpen = values.map(Number.isNaN);
    const isEmbedded = document.body.classList.contains("embedded"); // its frame is as high as the strip needs
    const isLow = !hasHeads || (window.innerHeight <= LOW && !isEmbedded); // then there is no room for lanes
    const height = (isLow ? HEIGHT : top + LANES * LANE) + STEPS; // the same, whatever is known
    set(drawing, { viewBox: `0 0 ${width} ${height}`, height });
    legend.hidden = isLow;
    none.hidden = !story?.isComplete || rows.length > 0;
    needed.hidden = !none.hidden;
    legend.style.left = `${left() - 8}px`;
    for (const part of [knob, ghost]) set(part.firstElementChild as Element, { y2: height - STEPS + 1 });
    ends.forEach((text, i) => set(text, { x: left() - 12, y: y(1 - i) + 4 }));
    set(lossLine, line(losses.map(([step, loss]) => [xOf(step), y(loss / highest)])));
    set(chanceLine, line(points.filter((_, i) => !isOpen[i])));
    const labeled = labels(last, x, moment);
    points.forEach(([cx, cy], i) => {
      set(dots[i], { class: isOpen[i] ? "dot open" : "dot", cx, cy: cy || 0, r: i === moment ? 5 : 3 });
      set(ticks[i], { x: cx, y: height - 3, visibility: labeled.has(i) ? "visible" : "hidden" });
    });
    lanes.forEach(({ group, name, parts }, row) => {
      const { head, shares, name: whole, short } = rows[row] ?? { head: 0, shares: [], name: "", short: "" };
      set(group, { class: `hue-${(head % n_head) % 8}`, visibility: isLow ? "hidden" : "visible" });
      setText(name, width < WIDE ? short : whole);
      set(name, { x: left() - 12 });
      parts.forEach((part, i) => {
        const from = x(Math.max(0, i - 0.5)), to = x(Math.min(last, i + 0.5));
        const opacity = rows[row] ? Math.max(PALE, shares[i] || 0).toFixed(2) : 0;
        set(part, { "fill-opacity": opacity, x: from, width: to - from });
      });
    });
    set(knob, { transform: `translate(${x(moment)} 0)` });
    set(ghost, { transform: `translate(${x(Math.max(0, pinned))} 0)`, visibility: pinned < 0 ? "hidden" : "visible" });
  }
  return { element, draw, step: move };
}

/** The moments with room for a label: the last one, the current one, then as many of the others as fit. */
function labels(last: number, x: (moment: number) => number, current: number) {
  const labeled = new Set([last]);
  for (const moment of [current, ...Array(last).keys()]) {
    const fits = (other: number) => Math.abs(x(moment) - x(other)) > 34;
    if ([...labeled].every(fits)) labeled.add(moment);
  }
  return labeled;
}

/** A handle at 0. */
function handle(name: string) {
  const bar = shape("line", { x1: 0, x2: 0, y1: 8 });
  return shape("g", { class: name }, bar, shape("rect", { x: -6, y: 1, width: 12, height: 12, rx: 3 }));
}
