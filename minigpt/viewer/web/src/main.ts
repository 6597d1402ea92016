/** The page: reads its data, starts the engine, and puts the panels together. */

import { App } from "./app.js";
import { openCompute } from "./compute.js";
import { h, isTouch, named, setText, term } from "./dom.js";
import { connect } from "./connection.js";
import { argmax, largest, normalize } from "./filters.js";
import { headsPanel } from "./heads.js";
import { listen } from "./keys.js";
import { glyph, Vocabulary } from "./letters.js";
import { openMatrix } from "./matrix.js";
import { nextPanel } from "./next.js";
import { peekBar } from "./peek.js";
import { openHelp } from "./sheet.js";
import { stripPanel } from "./strip.js";
import { textPanel } from "./text.js";
import { isRecurrent } from "./weights.js";
import type { Payload } from "./types.js";
import type { State } from "./app.js";

const MAX_DIFFERENCE = 2e-3;
const root = document.getElementById("app") as HTMLElement;
try {
  start(JSON.parse(document.getElementById("data")?.textContent ?? ""));
} catch (error) {
  const reason = error instanceof Error ? error.message : String(error);
  fail(`This page is damaged: ${reason}. Write it again with minigpt inspect.`);
}

function fail(message: string) {
  root.replaceChildren(h("p.message", { role: "alert" }, message));
}

function start(payload: Payload) {
  const { models } = payload;
  const vocabulary = new Vocabulary(payload.tokenizer, payload.vocabulary);
  const app: App = new App(payload, vocabulary, (request) => engine.send(request));
  const engine = connect(models, (reply) => app.answers.receive(reply));
  const compute = () => openCompute(app);
  const text = textPanel(app);
  const next = nextPanel(app);
  const address = new URLSearchParams(location.hash.slice(1));
  const only = address.get("only")?.split(","); // the panels to embed in another page
  const tiles = address.get("heads")?.split(",").map((name) => name.split(/\D/).map(Number));
  const onlyHeads = tiles ? tiles.map(([layer, head]) => ({ layer, head })) : null;
  const heads = headsPanel(app, { compute, matrix: () => openMatrix(app) }, onlyHeads);
  const strip = app.film.length ? stripPanel(app) : null;
  const check = h("span", "checking the arithmetic…");
  const announcement = h("p.hidden", { role: "status" });
  const panels = Object.entries({ text, next, heads, ...(strip && { film: strip }) });
  const shown = panels.filter(([name]) => !only || only.includes(name));
  const line = only
    ? [h("a", { href: "#", target: "_blank" }, "Open the whole page")]
    : [h("span", "works offline"), h("span", `written by minigpt ${payload.version}`)];
  root.replaceChildren(
    ...(only ? [] : [header(app)]),
    ...payload.warnings.map((warning) => h("p.message", warning)),
    h("div.workbench", ...shown.map(([, panel]) => panel.element)),
    h("footer", check, ...line),
    announcement,
  );
  if (!only || (only.includes("heads") && shown.length < 3)) {
    const peek = peekBar(app, text.paper, next.list, only ? "0px" : `-70px 0px ${strip ? -200 : 0}px`);
    root.prepend(peek.element);
    app.panels.push(peek.draw);
  }
  document.body.classList.toggle("embedded", Boolean(only));
  if (only) followSite();
  app.panels.push(...shown.map(([, panel]) => panel.draw), announce(app, announcement));
  addEventListener("resize", () => app.set({}));
  listen(app, compute, strip?.step);
  const differences: number[] = [];
  app.once = models.map(({ check: { ids } }, model) => {
    const key = `check ${model}`, position = { model, from: 0, ids, selected: ids.length - 1, muted: [], key };
    return { kind: "logits", key, position, use: (reply) => compare(model, reply) };
  });
  app.ask();

  /** Compare the page's logits with minigpt's. */
  function compare(model: number, reply: any) {
    if (reply.kind === "error") return fail(reply.message);
    differences[model] = largest(models[model].check.logits.map((logit, i) => Math.abs(logit - reply.logits[i])));
    const worst = differences.findIndex((difference) => !(difference < MAX_DIFFERENCE)); // NaN is wrong, too
    if (worst < 0 && app.once.some(({ kind }) => kind === "logits")) return;
    const points = (100 * Math.max(...models.map((model) => model.rounding))).toFixed(1);
    const rounded = `; 8-bit weights change the probabilities here by at most ${points} points`;
    const checked = models.length > 1 ? `each of the ${models.length} models ` : "";
    const right = `✓ ${checked}computes the same logits as minigpt, to ${largest(differences).toExponential(0)}`;
    if (worst < 0) return setText(check, right + (points === "0.0" ? "" : rounded));
    const differ = `the logits differ from minigpt's by ${differences[worst].toPrecision(2)}`;
    setText(check, `✗ ${named(models[worst])}: ${differ}: do not trust this page`);
  }
}

/** Tell the page around this frame how high it is, and take its theme. */
function followSite() {
  const tell = () => parent.postMessage({ height: document.body.offsetHeight }, "*");
  new ResizeObserver(tell).observe(document.body);
  addEventListener("message", ({ data }) => {
    if (typeof data?.isDark !== "boolean") return;
    document.documentElement.dataset.theme = data.isDark ? "dark" : "light";
    dispatchEvent(new Event("resize"));
  });
}

function header(app: App) {
  const { models } = app.payload;
  const title = h("h1");
  const about = h("p");
  let described = -1;
  app.panels.push(({ model }) => {
    if (model === described) return;
    described = model;
    const { name, step, parameters, summary, config } = models[model];
    const kind = isRecurrent(config) ? config.family.toUpperCase() : "GPT";
    title.replaceChildren(h("bdi", name));
    const article = /^[LR]/.test(kind) ? "An" : "A"; // an LSTM, an RNN
    const size = `${article} ${kind} of ${parameters.toLocaleString("en")} `;
    const isEarlier = app.moment >= 0 && model !== app.film.at(-1);
    const age = isEarlier ? `as it was at step ${step.toLocaleString("en")}` : summary;
    about.replaceChildren(size, term("parameters"), `, ${age}. It runs inside this page.`);
  });
  const keys = !isTouch() && h("button.quiet", { onclick: openHelp }, "Keys");
  const restart = h("button.quiet", { onclick: () => app.restart() }, "Start text");
  const theme = h("button.quiet", { onclick: switchTheme, "aria-label": "Light or dark" }, "◐");
  return h("header", title, about, h("nav", { "aria-label": "Page" }, ...chooseModels(app), restart, keys, theme));
}

/** Choose a run, and another to compare it with. The strip chooses the step. */
function chooseModels(app: App) {
  const runs = [...app.payload.models.keys()].filter((index) => index === 0 || !app.film.includes(index));
  if (runs.length < 2) return [];
  const options = () => runs.map((index) => h("option", { value: index }, app.payload.models[index].name));
  const change = () => {
    const run = Number(shown.value), model = run === 0 && app.moment >= 0 ? app.state.model : run;
    app.compare(model, other.value === "" ? null : Number(other.value));
  };
  const shown = h("select", { "aria-label": "Model", onchange: change }, ...options());
  const nothing = h("option", { value: "" }, "nothing");
  const other = h("select", { "aria-label": "Compare with", onchange: change }, nothing, ...options());
  const run = (index: number) => (runs.includes(index) ? index : 0);
  app.panels.push(({ model, compared }) => {
    shown.value = String(run(model));
    other.value = compared === null ? "" : String(run(compared));
  });
  return [h("label", "model ", shown), h("label", "compare with ", other)];
}

function switchTheme() {
  const { dataset } = document.documentElement;
  const isDark = dataset.theme ? dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  dataset.theme = isDark ? "light" : "dark";
  dispatchEvent(new Event("resize")); // canvases take the new colors
}

/** Tell screen readers what is selected, once it stays. */
function announce(app: App, element: HTMLElement) {
  let timer = 0;
  return (state: State) => {
    clearTimeout(timer);
    if (app.writer.isWriting) return;
    timer = window.setTimeout(() => {
      const look = app.look;
      if (!look || !app.isCurrent()) return;
      const probabilities = normalize(app.weights(look));
      const top = argmax(probabilities);
      const letter = `Letter ${state.selected + 1}, “${glyph(state.letters[state.selected].text)}”. `;
      const share = Math.round(100 * probabilities[top]);
      setText(element, `${letter}Expected next: “${app.vocabulary.show(top)}”, ${share} percent.`);
    }, 400);
  };
}
