/** The page: reads its data, starts the engine, and puts the panels together. */

import { App } from "./app.js";
import { openCompute } from "./compute.js";
import { explained, h, isTouch, named, percent, refresh, setText, term } from "./dom.js";
import { connect } from "./connection.js";
import { argmax, largest, normalize } from "./filters.js";
import { headsPanel } from "./heads.js";
import { listen, openHelp } from "./keys.js";
import { glyph, Vocabulary } from "./letters.js";
import { openMatrix } from "./matrix.js";
import { nextPanel } from "./next.js";
import { peekBar } from "./peek.js";
import { stripPanel } from "./strip.js";
import { textPanel } from "./text.js";
import { decode, isRecurrent } from "./weights.js";
import type { State } from "./app.js";
import type { Payload } from "./types.js";

const MAX_DIFFERENCE = 2e-3;
const root = document.getElementById("app") as HTMLElement;
try {
  const data = document.getElementById("data");
  const payload = JSON.parse(data?.textContent ?? "");
  data?.remove(); // its text would stay in memory
  start(payload);
} catch (error) {
  fail(error instanceof Error ? error.message : String(error));
}

function fail(reason: string) {
  const message = `This page is damaged: ${reason}. Write it again with minigpt inspect.`;
  root.replaceChildren(h("p.message", { role: "alert" }, message));
}

function start(payload: Payload) {
  const vocabulary = new Vocabulary(payload.tokenizer, payload.vocabulary);
  const engine = connect(payload.models.map(decode), (reply) => app.answers.receive(reply));
  for (const model of payload.models) model.weights = {}; // the engine has them
  const app: App = new App(payload, vocabulary, (request) => engine.send(request));
  const only = new URLSearchParams(location.hash.slice(1)).get("only")?.split(","); // the panels to embed elsewhere
  const pin = pinButton(app), text = textPanel(app), next = nextPanel(app);
  const heads = headsPanel(app, { compute: () => openCompute(app), matrix: () => openMatrix(app) });
  const strip = app.film.length ? stripPanel(app, pin) : null;
  const check = h("span"), announcement = h("p.hidden", { role: "status" });
  const panels = Object.entries({ text, next, heads, ...(strip && { film: strip }) });
  const shown = panels.filter(([name]) => !only || only.includes(name));
  const line = only
    ? [check, h("a", { href: "#", target: "_blank" }, "Open the whole page")]
    : [copyButton(app), h("span", `The model runs in this page, offline. Made with minigpt ${payload.version}.`)];
  root.replaceChildren(
    ...(only ? [] : [header(app, check, strip ? null : pin)]),
    ...payload.warnings.map((warning) => h("p.message", warning)),
    h("div.workbench", ...shown.map(([, panel]) => panel.element)),
    h("footer", ...line),
    announcement,
  );
  if (!only || (only.includes("heads") && shown.length < 3)) {
    const peek = peekBar(app, next.list, only ? "0px" : `-44px 0px ${strip ? -180 : 0}px`);
    root.prepend(peek.element);
    app.panels.push(peek.draw);
  }
  document.body.classList.toggle("embedded", Boolean(only));
  if (only) followSite();
  app.panels.push(...shown.map(([, panel]) => panel.draw), announce(app, announcement));
  addEventListener("resize", () => (refresh(), app.set({})));
  listen(app, strip?.step);
  checkArithmetic(app, check);
  app.ask();
}

/** Compare the logits of each model with minigpt's. @param element for the result */
function checkArithmetic(app: App, element: HTMLElement) {
  const { models } = app.payload, differences: number[] = [];
  setText(element, "checking the arithmetic…");
  app.once = models.map(({ check: { ids, logits } }, model) => {
    const key = `check ${model}`, position = { model, from: 0, ids, selected: ids.length - 1, muted: [], key };
    return { kind: "logits", key, position, use(reply) {
      if (reply.kind !== "logits") return fail(reply.kind === "error" ? reply.message : reply.kind);
      differences[model] = largest(logits.map((logit, i) => Math.abs(logit - reply.logits[i])));
      const worst = differences.findIndex((difference) => !(difference < MAX_DIFFERENCE)); // NaN is wrong, too
      if (worst >= 0) {
        const differ = `the logits differ from minigpt's by ${differences[worst].toPrecision(2)}`;
        return setText(element, `✗ ${named(models[worst])}: ${differ}: do not trust this page`);
      }
      if (app.once.some(({ kind }) => kind === "logits")) return;
      const all = models.length > 1 ? `all ${models.length} models` : "the model";
      const rounding = largest(models.map((model) => model.rounding));
      const rounded = `The weights are rounded to 8 bits, which changes probabilities by at most ${percent(rounding)}.`;
      const detail = "minigpt computed logits at one letter, the one that is selected first. For " +
        `${all}, the logits of this page differ from them by at most ${largest(differences).toExponential(0)}. ` +
        (rounding > 5e-4 ? rounded : "");
      const claim = `✓ ${all} ${models.length > 1 ? "give" : "gives"} minigpt's logits`;
      element.replaceChildren(explained(claim, detail));
    } };
  });
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

function header(app: App, check: HTMLElement, pin: HTMLElement | null) {
  const { models } = app.payload, title = h("h1"), about = h("p");
  let described = -1;
  app.panels.push(({ model }) => {
    if (model === described) return;
    described = model;
    const { name, step, parameters, summary, config } = models[model];
    const kind = isRecurrent(config) ? config.family.toUpperCase() : "GPT";
    title.replaceChildren(h("bdi", name));
    const size = `${kind} of ${parameters.toLocaleString("en")} `;
    const isEarlier = app.moment >= 0 && model !== app.film.at(-1);
    const age = isEarlier ? `as it was at step ${step.toLocaleString("en")}` : summary;
    about.replaceChildren(size, term("parameters"), `, ${age}`);
  });
  const keys = !isTouch() && h("button.quiet", { onclick: openHelp }, "Keys");
  const restart = h("button.quiet", { onclick: () => app.restart() }, "Start again");
  const theme = h("button.quiet", { onclick: switchTheme, "aria-label": "Light or dark" }, "◐");
  const nav = h("nav", { "aria-label": "Page" }, ...chooseModel(app, pin), restart, keys, theme);
  return h("header", title, h("span.check", check), about, nav);
}

/** Choose a run. The strip chooses its step. @param pin compares runs that have no strip */
function chooseModel(app: App, pin: HTMLElement | null) {
  const runs = [...app.payload.models.keys()].filter((index) => index === 0 || !app.film.includes(index));
  if (runs.length < 2) return [];
  const options = runs.map((index) => h("option", { value: index }, app.payload.models[index].name));
  const select = h("select", { "aria-label": "Model", onchange: () => app.show(Number(select.value)) }, ...options);
  app.panels.push(({ model }) => (select.value = String(runs.includes(model) ? model : 0)));
  return [h("label", "model ", select), pin];
}

function pinButton(app: App) {
  const onclick = () => {
    app.pin();
    if (app.state.pinned !== null) app.say("Now show another step or model: this one stays as an outline.");
  };
  const pin = h("button.pin", { onclick });
  app.panels.push(({ pinned }) => {
    const { name, step } = app.payload.models[pinned ?? 0], short = app.film.includes(pinned ?? 0) ? "" : `${name}, `;
    pin.setAttribute("aria-pressed", String(pinned !== null));
    setText(pin, pinned === null ? "Compare" : `✕ ${short}step ${step.toLocaleString("en")}`);
  });
  return pin;
}

/** A button for the command that continues the shown text. It only escapes the quotes of the text. */
function copyButton(app: App) {
  const { name, step } = app.payload.models[app.film.at(-1) ?? 0];
  const label = "Copy the minigpt command that continues this text";
  const button = h("button.quiet", { onclick: async () => {
    const { text, letters, selected } = app.state;
    const prompt = text.slice(0, letters[selected].end).replaceAll("'", "'\\''");
    await navigator.clipboard.writeText(`minigpt sample ${name}@${step} --temperature 0 --prompt '${prompt}'`);
    setText(button, "Copied");
    setTimeout(() => setText(button, label), 2000);
  } }, label);
  return button;
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
      const probabilities = normalize(app.weights(look.logits)), top = argmax(probabilities);
      const letter = `Letter ${state.selected + 1}, “${glyph(state.letters[state.selected].text)}”. `;
      const share = Math.round(100 * probabilities[top]);
      setText(element, `${letter}Expected next: “${app.vocabulary.show(top)}”, ${share} percent.`);
    }, 400);
  };
}
