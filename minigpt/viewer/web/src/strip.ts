/** The strip of the film: a handle for the step, the learning curve of the next letter, and lanes of heads. */

import { greatestChange, LANES, storyOf } from "./film.js";
import { h, percent, setText } from "./dom.js";
import type { App, State } from "./app.js";
import type { Story } from "./film.js";

/** Pixels: height of the curves and of a lane, and the margins. Names of lanes are on the left. */
const HEIGHT = 56, LANE = 11, TOP = 8, LEFT = 92, RIGHT = 16;
/** Milliseconds of the whole film. */
const PLAYS = 6000;

/** Create an element of a drawing. */
function shape(name: string, attributes: Record<string, string | number> = {}, ...children: Node[]) {
  const element = set(document.createElementNS("http://www.w3.org/2000/svg", name), attributes);
  element.append(...children);
  return element;
}

function set(element: Element, attributes: Record<string, string | number>) {
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  return element;
}

export function stripPanel(app: App) {
  const { film, payload } = app, steps = film.map((index) => payload.models[index].step), last = steps.length - 1;
  const title = h("b"), loss = h("span"), sentence = h("span.sentence"), chanceOf = h("span");
  const keys = [h("span.key", h("i.chance"), chanceOf), h("span.key", h("i.loss"), "loss")];
  const legend = h("span.legend", ...keys);
  const pin = h("button.quiet.pin", { onclick: () => app.pin() }, "Pin");
  const caption = h("p.line", title, loss, sentence, legend, pin);
  const play = h("button.play", { "aria-label": "Play the film", onclick: toggle }, "▶");
  const slider = h("input", {
    type: "range", min: 0, max: last, step: 1, "aria-label": "Step of training",
    oninput: () => (stop(), go(Number(slider.value))),
  });
  const { n_head } = payload.models[film[0]].config, hasHeads = payload.models[film[0]].heads.length > 0;
  const bottom = HEIGHT + (hasHeads ? LANES * LANE : 0), height = bottom + 18; // the same, whatever is known
  const losses = payload.losses.filter(([step]) => step <= steps[last]);
  const highest = losses.reduce((most, [, loss]) => Math.max(most, loss), 1e-9);
  const lossLine = shape("polyline", { class: "loss" }), chanceLine = shape("polyline", { class: "chance" });
  const dots = steps.map(() => shape("circle"));
  const lanes = Array.from({ length: hasHeads ? LANES : 0 }, (_, row) => lane(row));
  const ticks = steps.map((step, i) => {
    const anchor = i && i === last ? "end" : "middle";
    return shape("text", { y: height - 4, "text-anchor": anchor }, new Text(step.toLocaleString("en")));
  });
  const ghost = handle("ghost", height), knob = handle("handle", height);
  const known = shape("g", {}, chanceLine, ...dots, ...lanes.map(({ group }) => group));
  const drawing = shape("svg", { "aria-hidden": "true", height }, lossLine, known, ...ticks, knob);
  const plot = h("div.plot", slider, drawing as any);
  const element = h("section.card.strip", { "aria-label": "Film of the training" }, caption, h("div.reel", play, plot));
  let timer = 0;
  let story: Story | undefined;

  /** The parts of a lane. They stay, so that a click is not lost. */
  function lane(row: number) {
    const top = HEIGHT + row * LANE;
    const name = shape("text", { class: "name", x: LEFT - 8, y: top + 8, "text-anchor": "end" });
    const parts = steps.map(() => shape("rect", { class: "lane", y: top, height: LANE - 3 }));
    name.addEventListener("click", () => {
      const { head } = (story as Story).lanes[row];
      app.choose({ layer: Math.floor(head / n_head), head: head % n_head });
    });
    return { group: shape("g", {}, name, ...parts), name, parts };
  }

  const go = (moment: number) => app.moveTo(film[Math.min(last, Math.max(0, moment))]);

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

  /** Move by so many moments. */
  function step(by: number) {
    if (app.moment < 0) return;
    stop();
    go(app.moment + by);
  }

  /** Where a step is, in pixels: most is learned early. */
  const x = (step: number) => LEFT + Math.sqrt(step / steps[last]) * (plot.clientWidth - LEFT - RIGHT);

  plot.addEventListener("pointerdown", (event) => {
    if ((event.target as Element).matches(".name")) return;
    stop();
    plot.setPointerCapture(event.pointerId);
    drag(event);
  });
  plot.addEventListener("pointermove", (event) => plot.hasPointerCapture(event.pointerId) && drag(event));
  /** Go to the moment nearest to the pointer. */
  function drag(event: PointerEvent) {
    const at = event.clientX - plot.getBoundingClientRect().left;
    const distances = steps.map((step) => Math.abs(x(step) - at));
    go(distances.indexOf(Math.min(...distances)));
    slider.focus({ preventScroll: true });
    event.preventDefault();
  }

  function draw(state: State) {
    const { moment } = app;
    element.hidden = moment < 0; // a model of another run is shown
    if (moment < 0) return timer ? stop() : undefined;
    const model = payload.models[film[moment]];
    story = storyOf(app, story);
    const { curve, names, isOld } = story;
    known.classList.toggle("stale", isOld);
    const { moment: later, words } = greatestChange(curve, story.lanes, moment, names), isNow = later === moment;
    const [earlier, then] = [later - 1, later].map((index) => steps[index]?.toLocaleString("en"));
    setText(title, `step ${model.step.toLocaleString("en")} of ${steps[last].toLocaleString("en")}`);
    const [, value] = payload.losses.filter(([step]) => step <= model.step).at(-1) ?? [];
    setText(loss, value === undefined ? "" : `loss ${value.toFixed(2)}`);
    setText(sentence, words && `${isNow ? `Since ${earlier}` : `From ${earlier} to ${then}`}: ${words}.`);
    setText(chanceOf, `chance of ${names.letter}`);
    slider.value = String(moment);
    const share = curve.values[moment];
    const chance = Number.isNaN(share) ? "" : `, chance of ${names.letter} ${percent(share)}`;
    const said = isNow ? sentence.textContent : ""; // at another moment, it is about that one
    slider.setAttribute("aria-valuetext", `${title.textContent}, ${loss.textContent}${chance}. ${said}`);
    setText(play, timer ? "❚❚" : "▶");
    play.setAttribute("aria-label", timer ? "Pause the film" : "Play the film");
    pin.setAttribute("aria-pressed", String(state.pinned !== null));
    setText(pin, state.pinned === null ? "Pin" : "Unpin");
    if (plot.clientWidth > LEFT + RIGHT) drawPlot(story, moment, film.indexOf(state.pinned ?? -1));
  }

  function drawPlot({ curve: { values }, lanes: rows }: Story, moment: number, pinned: number) {
    const y = (share: number) => TOP + (1 - share) * (HEIGHT - 2 * TOP);
    const line = (points: number[][]) => ({ points: points.map((point) => point.join(",")).join(" ") });
    const points = values.map((value, i) => [x(steps[i]), y(value)]), isOpen = values.map(Number.isNaN);
    set(drawing, { viewBox: `0 0 ${plot.clientWidth} ${height}` });
    set(lossLine, line(losses.map(([step, loss]) => [x(step), y(loss / highest)])));
    set(chanceLine, line(points.filter((_, i) => !isOpen[i])));
    const edges = steps.map((step, i) => (i ? (x(steps[i - 1]) + x(step)) / 2 : x(step)));
    const labeled = labels(steps, x, steps[moment]);
    points.forEach(([cx, cy], i) => {
      set(dots[i], { class: isOpen[i] ? "dot open" : "dot", cx, cy: cy || 0, r: i === moment ? 5 : 3 });
      set(ticks[i], { x: cx, visibility: labeled.has(steps[i]) ? "visible" : "hidden" });
    });
    lanes.forEach(({ group, name, parts }, row) => {
      const { head, shares, name: label } = rows[row] ?? { head: 0, shares: [], name: "" };
      set(group, { class: `hue-${(head % n_head) % 8}` });
      setText(name, label);
      parts.forEach((part, i) => {
        const width = (edges[i + 1] ?? x(steps[last])) - edges[i];
        set(part, { "fill-opacity": (shares[i] || 0).toFixed(2), x: edges[i], width });
      });
    });
    set(knob, { transform: `translate(${x(steps[moment])} 0)` });
    if (pinned < 0) return ghost.remove();
    set(ghost, { transform: `translate(${x(steps[pinned])} 0)` });
    knob.before(ghost);
  }
  return { element, draw, step };
}

/** The steps with room for a label: the last one, the current one, then as many of the others as fit. */
function labels(steps: number[], x: (step: number) => number, current: number) {
  const end = steps[steps.length - 1], labeled = new Set([end]);
  for (const step of [current, ...steps]) {
    const fits = (other: number) => Math.abs(x(step) - x(other)) > (other === end ? 52 : 34);
    if ([...labeled].every(fits)) labeled.add(step);
  }
  return labeled;
}

/** A handle at 0. */
function handle(name: string, height: number) {
  const bar = shape("line", { x1: 0, x2: 0, y1: 6, y2: height - 16 });
  return shape("g", { class: name }, bar, shape("rect", { x: -6, y: 0, width: 12, height: 12, rx: 3 }));
}

