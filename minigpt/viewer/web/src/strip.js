/** The strip of the film: a handle for the step, the learning curve of the next letter, and lanes of heads. */

import { greatestChange, lanes, learningCurve } from "./film.js";
import { h, percent, setText } from "./dom.js";
import { glyph } from "./letters.js";
import { quoted } from "./shading.js";

/** Pixels: height of the curves and of a lane, and the margins. Names of lanes are on the left. */
const HEIGHT = 56, LANE = 11, TOP = 8, LEFT = 92, RIGHT = 16;
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
  const caption = h("p.line", title, loss, sentence, legend, pin);
  const play = h("button.play", { "aria-label": "Play the film", onclick: toggle }, "▶");
  const slider = h("input", {
    type: "range", min: 0, max: last, step: 1, "aria-label": "Step of training",
    oninput: () => (stop(), go(Number(slider.value))),
  });
  const drawing = shape("svg", { "aria-hidden": "true" });
  const plot = h("div.plot", slider, /** @type {any} */ (drawing));
  const element = h("section.card.strip", { "aria-label": "Film of the training" }, caption, h("div.reel", play, plot));
  let timer = 0;
  let rows = /** @type {import("./film.js").Lane[]} */ ([]);
  let subject = "";

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

  /** Move by so many moments. @param {number} by */
  function step(by) {
    if (app.moment < 0) return;
    stop();
    go(app.moment + by);
  }

  /** Where a step is, in pixels: most is learned early. @param {number} step */
  const x = (step) => LEFT + Math.sqrt(step / steps[last]) * (plot.clientWidth - LEFT - RIGHT);

  plot.addEventListener("pointerdown", (event) => {
    if (/** @type {Element} */ (event.target).matches(".name")) return;
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
    const { moment } = app;
    element.hidden = moment < 0; // a model of another run is shown
    if (moment < 0) return timer ? stop() : undefined;
    const looks = film.map((index) => app.fresh(index));
    const model = payload.models[film[moment]];
    const next = state.letters[state.selected + 1];
    const token = next?.first === next?.last ? (state.ids[next?.first] ?? -1) : -1;
    const curve = learningCurve(looks, next, token, (logits) => app.probabilities(logits));
    const before = subject;
    subject = `${state.selected} ${state.text}`;
    rows = lanes(looks, subject === before ? rows : []);
    const letter = `“${next ? glyph(next.text) : curve.token < 0 ? "" : app.vocabulary.show(curve.token)}”`;
    const from = looks.at(-1)?.from ?? 0;
    const at = (/** @type {number} */ position) => state.letters.findIndex(({ last }) => last >= position + from);
    const names = {
      letter,
      head: (/** @type {number} */ head) => `${Math.floor(head / model.config.n_head)}·${head % model.config.n_head}`,
      at: (/** @type {number} */ position) => quoted(state.letters, at(position)),
    };
    const { moment: later, words } = greatestChange(curve, rows, moment, names);
    const [earlier, then] = [later - 1, later].map((index) => steps[index]?.toLocaleString("en"));
    setText(title, `step ${model.step.toLocaleString("en")} of ${steps[last].toLocaleString("en")}`);
    const [, value] = payload.losses.filter(([step]) => step <= model.step).at(-1) ?? [];
    setText(loss, value === undefined ? "" : `loss ${value.toFixed(2)}`);
    setText(sentence, words && `${later === moment ? `Since ${earlier}` : `From ${earlier} to ${then}`}: ${words}.`);
    legend.replaceChildren(key("chance", `chance of ${letter}`), key("loss", "loss"));
    slider.value = String(moment);
    const chance = Number.isNaN(curve.values[moment]) ? "" : `, chance of ${letter} ${percent(curve.values[moment])}`;
    slider.setAttribute("aria-valuetext", `${title.textContent}, ${loss.textContent}${chance}. ${words}`);
    setText(play, timer ? "❚❚" : "▶");
    play.setAttribute("aria-label", timer ? "Pause the film" : "Play the film");
    const pinned = film.indexOf(state.other ?? -1);
    pin.setAttribute("aria-pressed", String(pinned >= 0));
    setText(pin, pinned < 0 ? "Pin" : "Unpin");
    const named = rows.map((lane) => ({
      ...lane, name: `${names.head(lane.head)} on “${glyph(state.letters[at(lane.position)].text)}”`,
    }));
    drawPlot(curve.values, named, moment, pinned);
  }

  /** @param {number[]} values of the curve @param {(import("./film.js").Lane & {name: string})[]} rows
   * @param {number} moment @param {number} pinned */
  function drawPlot(values, rows, moment, pinned) {
    const { n_head } = payload.models[film[0]].config;
    const width = plot.clientWidth, height = HEIGHT + rows.length * LANE + 18;
    const y = (/** @type {number} */ share) => TOP + (1 - share) * (HEIGHT - 2 * TOP);
    const losses = payload.losses.filter(([step]) => step <= steps[last]);
    const highest = losses.reduce((most, [, loss]) => Math.max(most, loss), 1e-9);
    const dots = values.map((value, i) => /** @type {[number, number]} */ ([x(steps[i]), y(value || 0)]));
    const isOpen = values.map(Number.isNaN);
    const parts = [
      line("loss", losses.map(([step, loss]) => [x(step), y(loss / highest)])),
      line("chance", dots.filter((_, i) => !isOpen[i])),
      ...dots.map(([cx, cy], i) =>
        shape("circle", { class: isOpen[i] ? "dot open" : "dot", cx, cy, r: i === moment ? 5 : 3 })),
    ];
    const edges = steps.map((step, i) => (i ? (x(steps[i - 1]) + x(step)) / 2 : x(step)));
    rows.forEach(({ head, shares, name }, row) => {
      const top = HEIGHT + row * LANE, hue = `hue-${(head % n_head) % 8}`;
      const choose = () => app.choose({ layer: Math.floor(head / n_head), head: head % n_head });
      const label = text(name, { class: `name ${hue}`, x: LEFT - 8, y: top + 8, "text-anchor": "end" });
      label.addEventListener("click", choose);
      parts.push(label);
      shares.forEach((share, i) => {
        const opacity = Number.isNaN(share) ? 0 : share.toFixed(2), end = edges[i + 1] ?? x(steps[last]);
        parts.push(shape("rect", {
          class: `lane ${hue}`, "fill-opacity": opacity, x: edges[i], y: top, width: end - edges[i], height: LANE - 3,
        }));
      });
    });
    parts.push(...labels(steps, x, steps[moment]).map((step, i, all) =>
      text(step.toLocaleString("en"), {
        x: x(step), y: height - 4, "text-anchor": i && i === all.length - 1 ? "end" : "middle",
      })));
    if (pinned >= 0) parts.push(handle("ghost", x(steps[pinned]), height));
    parts.push(handle("handle", x(steps[moment]), height));
    drawing.setAttribute("viewBox", `0 0 ${width} ${height}`);
    drawing.setAttribute("height", String(height));
    drawing.replaceChildren(...parts);
  }
  return { element, draw, step };
}

/** The steps with room for a label: the last one, the current one, then as many of the others as fit.
 * @param {number[]} steps @param {(step: number) => number} x @param {number} current */
function labels(steps, x, current) {
  const end = steps[steps.length - 1], labeled = new Set([end]);
  for (const step of [current, ...steps]) {
    const fits = (/** @type {number} */ other) => Math.abs(x(step) - x(other)) > (other === end ? 52 : 34);
    if ([...labeled].every(fits)) labeled.add(step);
  }
  return steps.filter((step) => labeled.has(step));
}

/** @param {string} name @param {number[][]} points */
function line(name, points) {
  return shape("polyline", { class: name, points: points.map((point) => point.join(",")).join(" ") });
}

/** @param {string} content @param {Record<string, string | number>} attributes */
function text(content, attributes) {
  return shape("text", attributes, new Text(content));
}

/** @param {string} name @param {number} x @param {number} height */
function handle(name, x, height) {
  const bar = shape("line", { x1: x, x2: x, y1: 6, y2: height - 16 });
  return shape("g", { class: name }, bar, shape("rect", { x: x - 6, y: 0, width: 12, height: 12, rx: 3 }));
}

/** @param {string} kind @param {string} label */
function key(kind, label) {
  return h("span.key", h("i", { class: kind }), label);
}
