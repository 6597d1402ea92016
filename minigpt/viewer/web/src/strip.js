/** The strip of the film: a handle for the step, the learning curve of the next letter, and lanes of heads. */

import { change, lanes, learningCurve, wordAround } from "./film.js";
import { h, percent, setText } from "./dom.js";
import { glyph } from "./letters.js";

const HEIGHT = 62, LANE = 7, TOP = 8, SIDE = 14;
/** Milliseconds of the whole film. */
const PLAYS = 6000;

/** Create an element of a drawing. @param {string} name @param {Record<string, string | number>} attributes
 * @param {...Node} children */
function shape(name, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, String(value));
  element.append(...children);
  return element;
}

/** @param {import("./app.js").App} app */
export function stripPanel(app) {
  const { film, payload } = app, steps = film.map((index) => payload.models[index].step), last = steps.length - 1;
  const title = h("b"), loss = h("span"), sentence = h("span.sentence"), legend = h("span.legend");
  const pin = h("button.quiet.pin", { onclick: () => app.pin() }, "Pin");
  const line = h("p.line", title, loss, sentence, legend, pin);
  const play = h("button.play", { "aria-label": "Play the film", onclick: toggle }, "▶");
  const slider = h("input", {
    type: "range", min: 0, max: last, step: 1, "aria-label": "Step of training",
    oninput: () => go(Number(slider.value)),
  });
  const drawing = shape("svg", { "aria-hidden": "true" });
  const plot = h("div.plot", slider, /** @type {any} */ (drawing));
  const element = h("section.card.strip", { "aria-label": "Film of the training" }, line, h("div.reel", play, plot));
  let timer = 0;

  /** @param {number} moment */
  function go(moment) {
    app.moveTo(film[Math.min(last, Math.max(0, moment))]);
  }

  function toggle() {
    if (timer) return stop();
    if (app.moment === last) go(0);
    timer = window.setInterval(() => (app.moment < last ? go(app.moment + 1) : stop()), PLAYS / last);
    app.set({});
  }
  function stop() {
    clearInterval(timer);
    timer = 0;
    app.set({});
  }

  /** Where a step is, in pixels: most is learned early. @param {number} step */
  const x = (step) => SIDE + Math.sqrt(step / steps[last]) * (plot.clientWidth - 2 * SIDE);

  plot.addEventListener("pointerdown", (event) => {
    stop();
    plot.setPointerCapture(event.pointerId);
    drag(event);
  });
  plot.addEventListener("pointermove", (event) => plot.hasPointerCapture(event.pointerId) && drag(event));
  /** Go to the moment nearest to the pointer. @param {PointerEvent} event */
  function drag(event) {
    const at = event.clientX - plot.getBoundingClientRect().left;
    const distances = steps.map((step) => Math.abs(x(step) - at));
    go(distances.indexOf(Math.min(...distances)));
    slider.focus({ preventScroll: true });
    event.preventDefault();
  }

  /** @param {import("./app.js").State} state */
  function draw(state) {
    const looks = film.map((index) => app.fresh(index)), moment = app.moment;
    element.hidden = moment < 0; // a model of another run is shown
    if (moment < 0) return;
    const model = payload.models[film[moment]];
    const next = state.letters[state.selected + 1], curve = learningCurve(looks, next), rows = lanes(looks);
    const letter = `“${next ? glyph(next.text) : curve.token < 0 ? "" : app.vocabulary.show(curve.token)}”`;
    const from = looks.at(-1)?.from ?? 0;
    const at = (/** @type {number} */ position) => state.letters.findIndex(({ last }) => last >= position + from);
    const names = {
      letter,
      head: (/** @type {number} */ head) => `${Math.floor(head / model.config.n_head)}·${head % model.config.n_head}`,
      at: (/** @type {number} */ position) => `“${wordAround(state.letters, at(position))}”`,
    };
    const words = change(curve, rows, moment, names);
    setText(title, `step ${model.step.toLocaleString("en")} of ${steps[last].toLocaleString("en")}`);
    setText(loss, model.loss === null ? "" : `loss ${model.loss.toFixed(2)}`);
    setText(sentence, words && `Since step ${steps[moment - 1].toLocaleString("en")}: ${words}.`);
    legend.replaceChildren(
      key("chance", `chance of ${letter}`),
      key("loss", "loss"),
      ...rows.map(({ head, position }) =>
        key("lane", `${names.head(head)} on “${glyph(state.letters[at(position)].text)}”`, head % model.config.n_head)),
    );
    slider.value = String(moment);
    const chance = Number.isNaN(curve.values[moment]) ? "" : `, chance of ${letter} ${percent(curve.values[moment])}`;
    slider.setAttribute("aria-valuetext", `${title.textContent}, ${loss.textContent}${chance}. ${words}`);
    setText(play, timer ? "❚❚" : "▶");
    play.setAttribute("aria-label", timer ? "Pause the film" : "Play the film");
    pin.setAttribute("aria-pressed", String(state.other !== null));
    setText(pin, state.other === null ? "Pin" : "Unpin");
    drawPlot(curve.values, rows, moment, film.indexOf(state.other ?? -1));
  }

  /** @param {number[]} values @param {import("./film.js").Lane[]} rows @param {number} moment @param {number} pinned */
  function drawPlot(values, rows, moment, pinned) {
    const width = plot.clientWidth, bottom = HEIGHT - TOP, height = HEIGHT + rows.length * (LANE + 2) + 16;
    drawing.setAttribute("viewBox", `0 0 ${width} ${height}`);
    drawing.setAttribute("height", String(height));
    const first = payload.models[film[0]], losses = payload.losses.filter(([step]) => step <= steps[last]);
    if (first.loss !== null && !(losses[0]?.[0] <= first.step)) losses.unshift([first.step, first.loss]);
    const highest = Math.max(...losses.map(([, value]) => value), 1e-9);
    const path = (/** @type {[number, number][]} */ points) => points.map((point) => point.join(",")).join(" ");
    const y = (/** @type {number} */ share) => TOP + (1 - share) * (bottom - TOP);
    const dots = values.map((value, i) => /** @type {[number, number]} */ ([x(steps[i]), y(value || 0)]));
    const known = dots.filter((_, i) => !Number.isNaN(values[i]));
    const parts = [
      shape("polyline", { class: "loss", points: path(losses.map(([step, value]) => [x(step), y(value / highest)])) }),
      shape("polyline", { class: "chance", points: path(known) }),
      ...dots.map(([cx, cy], i) =>
        shape("circle", { class: Number.isNaN(values[i]) ? "dot open" : "dot", cx, cy, r: i === moment ? 5 : 3 })),
    ];
    rows.forEach(({ head, shares }, row) => shares.forEach((share, i) => {
      if (!(share > 0.01)) return;
      const start = i ? (x(steps[i - 1]) + x(steps[i])) / 2 : x(steps[0]);
      const end = i < last ? (x(steps[i]) + x(steps[i + 1])) / 2 : x(steps[last]);
      const lane = shape("rect", {
        class: `lane hue-${head % payload.models[film[0]].config.n_head % 8}`, "fill-opacity": share.toFixed(2),
        x: start, y: HEIGHT + row * (LANE + 2), width: end - start, height: LANE,
      });
      parts.push(lane);
    }));
    let right = -Infinity;
    for (const [i, step] of steps.entries()) {
      const at = x(step), isLast = i === last;
      if (at - right < 34 || (!isLast && x(steps[last]) - at < 40)) continue;
      right = at;
      const label = shape("text", { x: at, y: height - 3, "text-anchor": i ? (isLast ? "end" : "middle") : "start" });
      label.textContent = step.toLocaleString("en");
      parts.push(label);
    }
    if (pinned >= 0) parts.push(handle("ghost", x(steps[pinned]), height));
    parts.push(handle("handle", x(steps[moment]), height));
    drawing.replaceChildren(...parts);
  }
  return { element, draw, go: (/** @type {number} */ by) => (stop(), go(app.moment + by)) };
}

/** @param {string} name @param {number} x @param {number} height */
function handle(name, x, height) {
  const bar = shape("line", { x1: x, x2: x, y1: 6, y2: height - 16 });
  return shape("g", { class: name }, bar, shape("rect", { x: x - 6, y: 0, width: 12, height: 12, rx: 3 }));
}

/** @param {string} kind @param {string} text @param {number} [hue] */
function key(kind, text, hue) {
  const sample = h("i", { class: `${kind}${hue === undefined ? "" : ` hue-${hue % 8}`}` });
  return h("span.key", sample, text);
}
