// The figures of the course. Each <figure class="course" data-figure="NAME"> gets one control and one drawing.
// scripts/record_course writes the measured numbers to figures-data.js.
// Without this script, a page shows the pictures that `scripts/make_figures` takes of the figures and live panels.
(() => {
  const NS = "http://www.w3.org/2000/svg";

  /** Return an element with attributes and children. */
  function h(tag, attributes = {}, ...children) {
    const svg = ["svg", "rect", "text", "polyline", "line", "g", "title"].includes(tag);
    const element = svg ? document.createElementNS(NS, tag) : document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("on")) element[name] = value;
      else element.setAttribute(name, value);
    }
    element.append(...children);
    return element;
  }

  const show = (letter) => ({ " ": "␣", "\n": "↵" })[letter] ?? letter;
  const percent = (share) => `${(100 * share).toFixed(share < 0.0995 ? 1 : 0)}%`;
  const sum = (values) => values.reduce((a, b) => a + b, 0);

  function softmax(scores) {
    const exponentials = scores.map((score) => Math.exp(score - Math.max(...scores)));
    return exponentials.map((value) => value / sum(exponentials));
  }

  /** A label with a drop-down. `change` receives the index of the chosen option. */
  function choice(label, options, change, chosen = 0) {
    const select = h("select", { onchange: () => change(select.selectedIndex) });
    select.append(...options.map((option, i) => h("option", i === chosen ? { selected: "" } : {}, option)));
    return h("label", {}, `${label} `, select);
  }

  /** A label with a slider over `options`, for what has an order. `change` receives the index of the chosen option. */
  function slider(label, options, change, chosen = 0) {
    const input = h("input", { type: "range", min: 0, max: options.length - 1, value: chosen, "aria-label": label });
    const output = h("output");
    const say = () => input.setAttribute("aria-valuetext", (output.textContent = options[input.value]));
    input.oninput = () => (say(), change(Number(input.value)));
    say();
    return h("label", {}, `${label} `, input, output);
  }

  /** A drawing that fits its width: its letters keep their size on a phone. */
  function fitted(draw) {
    const box = h("div");
    let width = 0;
    new ResizeObserver(() => {
      if (box.clientWidth && box.clientWidth !== width) box.replaceChildren(...draw((width = box.clientWidth)));
    }).observe(box);
    return box;
  }

  /** Horizontal bars: a label, a bar and the number in each row. */
  function bars(rows, text = (value) => value.toFixed(3), largest = Math.max(...rows.map(([, value]) => value))) {
    const table = h("table", { class: "bars" });
    for (const [label, value] of rows) {
      const width = Math.max(0, (100 * value) / (largest || 1));
      const bar = h("div", { style: `width: ${width}%` });
      table.append(h("tr", {}, h("th", { scope: "row" }, label), h("td", {}, bar), h("td", {}, text(value))));
    }
    return table;
  }

  /** A table of numbers, shaded by their share of the largest. The mask hides a null. */
  function grid(rows, columns, values, text) {
    const largest = Math.max(...values.flat().filter((value) => value !== null), 1e-9);
    const table = h("table", { class: "grid" }, h("tr", {}, h("th"), ...columns.map((name) => h("th", {}, name))));
    values.forEach((row, i) => {
      const cells = row.map((value) =>
        value === null
          ? h("td", { class: "hidden" }, "–")
          : h("td", { style: `--share: ${Math.max(0, value / largest)}` }, text(value)),
      );
      table.append(h("tr", {}, h("th", { scope: "row" }, rows[i]), ...cells));
    });
    return table;
  }

  /** Lines over x, each with a name: [[name, [[x, y], ...]], ...]. The axes cover `points`. */
  function lines(series, label, log = false, points = series.flatMap(([, line]) => line)) {
    return fitted((W) => plot(series, label, log, points, W, 260, 66, 34));
  }

  function plot(series, label, log, points, W, H, L, B) {
    const scale = (values, from, to, f = (v) => v) => {
      const [low, high] = [Math.min(...values.map(f)), Math.max(...values.map(f))];
      return (value) => from + ((f(value) - low) / (high - low || 1)) * (to - from);
    };
    const xs = points.map(([x]) => x);
    const ys = points.map(([, y]) => y);
    const x = scale(xs, L, W - 12);
    const y = scale(ys, H - B, 12, log ? Math.log : undefined);
    const svg = h("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": `${label}: ${series.map(([n]) => n)}` });
    for (const value of [Math.min(...ys), Math.max(...ys)]) {
      svg.append(h("text", { x: L - 6, y: y(value) + 4, "text-anchor": "end" }, value.toPrecision(2)));
      svg.append(h("line", { x1: L, x2: W - 12, y1: y(value), y2: y(value), class: "axis" }));
    }
    for (const value of [Math.min(...xs), Math.max(...xs)]) {
      const anchor = value === Math.min(...xs) ? "start" : "end";
      svg.append(h("text", { x: x(value), y: H - 14, "text-anchor": anchor }, value.toLocaleString("en")));
    }
    svg.append(h("text", { x: (L + W) / 2, y: H - 14, "text-anchor": "middle" }, label));
    const legend = h("p", { class: "legend" });
    series.forEach(([name, line], i) => {
      svg.append(h("polyline", { points: line.map(([a, b]) => `${x(a)},${y(b)}`).join(" "), class: `line-${i}` }));
      legend.append(h("span", { class: `line-${i}` }, name));
    });
    return [svg, legend];
  }

  const DRAW = {
    // Chapter 1: a row of the table of pairs.
    pairs({ letters, table }, figure) {
      const H = letters.indexOf("H");
      const draw = (i) => {
        const rows = letters.map((letter, j) => [show(letter), table[i][j]]).sort((a, b) => b[1] - a[1]);
        figure.set(bars(rows.slice(0, 8), percent), heat(i));
      };
      const heat = (chosen) =>
        fitted((width) => {
          const [L, T, N] = [24, 44, letters.length];
          const cell = Math.min(13, (width - L) / N);
          const every = Math.ceil(11 / cell); // letters of 12 pixels need 11
          const isLabeled = (i) => i === chosen || (i % every === 0 && Math.abs(i - chosen) >= every);
          const svg = h("svg", { viewBox: `0 0 ${width} ${T + N * cell}`, role: "img", "aria-label": "The table of pairs" });
          svg.append(h("text", { x: 0, y: 13 }, "↓ last letter, → next letter"));
          table.forEach((row, i) => {
            const at = (i + 0.5) * cell;
            const pick = () => draw((after.querySelector("select").selectedIndex = i));
            const group = h("g", { class: i === chosen ? "chosen" : "", onclick: pick });
            group.append(h("rect", { y: T + i * cell, width, height: cell, opacity: 0 }));
            if (isLabeled(i)) group.append(h("text", { x: 10, y: T + at + 4, "text-anchor": "middle" }, show(letters[i])));
            if (i % every === 0) svg.append(h("text", { x: L + at, y: T - 7, "text-anchor": "middle" }, show(letters[i])));
            row.forEach((share, j) => {
              const box = { x: L + j * cell, y: T + i * cell, width: cell - 1, height: cell - 1, opacity: Math.sqrt(share) };
              const title = `after ${show(letters[i])}, ${show(letters[j])}: ${percent(share)}`;
              if (share > 0.001) group.append(h("rect", box, h("title", {}, title)));
            });
            svg.append(group);
          });
          return [svg];
        });
      const after = choice("after the letter", letters.map(show), draw, H);
      figure.control(after);
      draw(H);
    },
    // Chapter 2: the weights of an average.
    past(_, figure) {
      const words = [...'"I am Ad'].map(show);
      const box = h("input", { type: "checkbox", checked: "", onchange: () => draw() });
      const draw = () =>
        figure.set(
          grid(
            words,
            words,
            words.map((_, t) => words.map((_, s) => (box.checked ? (s <= t ? 1 / (t + 1) : null) : 1 / words.length))),
            (value) => value.toFixed(2),
          ),
        );
      figure.control(h("label", {}, box, " hide the future"));
      draw();
    },
    // Chapter 3: scores of a query that the reader edits.
    fox({ words, components, keys, query }, figure) {
      const inputs = query.map((value, i) =>
        h("input", { type: "number", value, "aria-label": components[i], step: 1, oninput: () => draw() }),
      );
      const draw = () => {
        const q = inputs.map((input) => Number(input.value) || 0);
        const scores = keys.map((key) => sum(key.map((value, i) => value * q[i])));
        figure.set(grid(["q · k"], words, [scores], String));
      };
      const cells = components.map((name, i) => h("label", {}, name, inputs[i]));
      figure.control(h("div", { class: "query" }, h("span", {}, "query of fox"), ...cells));
      draw();
    },
    // Chapter 4: how many keys get weight.
    scale(_, figure) {
      let state = 7;
      const normal = () => {
        const uniform = () => (state = (state * 48271) % 2147483647) / 2147483647;
        return Math.sqrt(-2 * Math.log(uniform())) * Math.cos(2 * Math.PI * uniform());
      };
      const numbers = Array.from({ length: 256 }, normal);
      const sizes = Array.from({ length: 9 }, (_, i) => 2 ** i);
      const draw = (i) => {
        const D = sizes[i];
        const rows = [Math.sqrt(D), 1].map((factor) => {
          const weights = softmax(numbers.map((value) => factor * value));
          return Math.exp(-sum(weights.map((w) => (w ? w * Math.log(w) : 0))));
        });
        figure.set(bars([["without the scale", rows[0]], ["with the scale", rows[1]], ["all keys", 256]], (v) => v.toFixed(1)));
      };
      figure.control(slider("head size", sizes.map((size) => `d_k = ${size}`), draw, 6));
      draw(6);
    },
    // Chapter 5: where one head looks.
    head({ prompt, steps }, figure) {
      const names = Object.keys(steps);
      const draw = (i) => {
        const weights = steps[names[i]];
        const largest = Math.max(...weights);
        const letters = [...prompt].map((letter, j) =>
          h("span", { style: `--share: ${weights[j] / largest}`, title: percent(weights[j]) }, show(letter)),
        );
        const totals = {};
        [...prompt].forEach((letter, j) => (totals[show(letter)] = (totals[show(letter)] ?? 0) + weights[j]));
        const rows = Object.entries(totals).sort((a, b) => b[1] - a[1]).slice(0, 6);
        figure.set(h("p", { class: "letters" }, ...letters), bars(rows, percent));
      };
      figure.control(slider("step", names, draw, names.length - 1));
      draw(names.length - 1);
    },
    // Chapter 6: losses by the number of layers, from one layer.
    positions(data, figure) {
      const largest = Math.max(...data.flatMap(({ rows }) => rows.map(([, loss]) => loss)));
      series([...data].reverse(), figure, 0, slider, largest);
    },
    // Chapter 7: losses by the number of heads. Only their differences are large enough to see.
    heads: (data, figure) => series(data, figure, 1),
    // Chapter 10: what rounds of a polynomial do to singular values.
    muon(_, figure) {
      const start = [1, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001];
      const p = (s) => 3.4445 * s - 4.775 * s ** 3 + 2.0315 * s ** 5;
      const draw = (rounds) => {
        const after = (s) => Array.from({ length: rounds }).reduce(p, s);
        figure.set(bars(start.map((s) => [`from ${s}`, after(s)]), undefined, 1.2));
      };
      const names = Array.from({ length: 11 }, (_, rounds) => `${rounds} round${rounds === 1 ? "" : "s"}`);
      figure.control(slider("after", names, draw, 5));
      draw(5);
    },
    // Chapter 11: films with several seeds.
    films({ rows }, figure) {
      const count = (labels, of) => labels.map((label) => [label, rows.filter((row) => of(row) === label).length]);
      const bin = ({ half }) => (half === null ? "never" : Math.ceil(half / 50));
      const bins = rows.map(bin).filter(Number.isInteger);
      const steps = Array.from({ length: Math.max(...bins) - Math.min(...bins) + 1 }, (_, i) => Math.min(...bins) + i);
      const named = count(steps, bin).map(([n, value]) => [`${50 * n - 49} to ${50 * n}`, value]);
      const heads = [...new Set(rows.map(({ head }) => head))].sort();
      const views = [[...named, ...count(["never"], bin)], count(heads, ({ head }) => head)];
      const draw = (i) => figure.set(bars(views[i], String));
      figure.control(choice("show", ["the step of one half", "the head that finds Anna"], draw));
      draw(0);
    },
    // Chapter 12: two networks.
    rivals({ loss, gradient }, figure) {
      const named = (curves) => [["LSTM", curves.lstm], ["GPT", curves.gpt]];
      const draw = (i) => figure.set(i ? lines(named(gradient), "distance, in letters", true) : lines(named(loss), "step"));
      figure.control(choice("show", ["loss by step", "gradient by distance"], draw));
      draw(0);
    },
  };

  /** Chapters 6 to 9: bars of one of several series. */
  function series(data, figure, first = 0, control = choice, largest = undefined) {
    if (!data.length) return; // not measured yet
    const draw = (i) => figure.set(bars(data[i].rows, undefined, largest));
    figure.control(control("show", data.map(({ name }) => name), draw, first));
    draw(first);
  }

  function start() {
    for (const element of document.querySelectorAll("figure.course:not([data-ready])")) {
      const data = window.COURSE?.[element.dataset.figure];
      const control = h("div", { class: "control" });
      const drawing = h("div", { class: "drawing" });
      element.querySelector("img")?.remove();
      element.prepend(control, drawing);
      element.dataset.ready = "";
      const figure = { control: (...nodes) => control.append(...nodes), set: (...nodes) => drawing.replaceChildren(...nodes) };
      (DRAW[element.dataset.figure] ?? series)(data ?? {}, figure);
    }
    for (const link of document.querySelectorAll('a[href*="live.html#only="]')) embed(link);
    document.querySelectorAll(".predict").forEach(predict);
    const observer = new MutationObserver(() => frames().forEach(({ contentWindow }) => paint(contentWindow)));
    observer.observe(document.body, { attributeFilter: ["data-md-color-scheme"] });
  }

  /** Replace a picture that links to panels of the live page by these panels. They load when they come into view. */
  function embed(link) {
    link.replaceWith(h("iframe", { class: "live", loading: "lazy", title: link.firstElementChild.alt, src: link.href }));
  }

  // Panels say how tall they are, and take the colors of the site.
  const frames = () => [...document.querySelectorAll("iframe.live")];
  const paint = (panels) => panels.postMessage({ isDark: document.body.dataset.mdColorScheme === "slate" }, "*");
  addEventListener("message", ({ data, source }) => {
    const frame = frames().find(({ contentWindow }) => contentWindow === source);
    if (!frame || !(data?.height > 0)) return;
    frame.style.height = `${data.height + 2}px`;
    paint(source);
  });

  const STORED = "minigpt-predictions";
  let answers = {};
  /** Return the answers in all chapters, or store `changed`. Without storage, they last as long as the page. */
  function stored(changed = null) {
    try {
      if (changed) localStorage.setItem(STORED, JSON.stringify(changed));
      return (answers = JSON.parse(localStorage.getItem(STORED)) ?? {});
    } catch {
      return (answers = changed ?? answers);
    }
  }

  /** Turn the options of a prediction, (a), (b) and (c), into buttons. The first one pressed counts. */
  function predict(box, number) {
    const letterOf = (element) => element?.textContent.match(/^\s*\((\w)\)/)?.[1];
    const options = [...box.querySelectorAll(":scope > p")].filter(letterOf);
    const details = box.querySelector("details");
    const right = letterOf(details?.querySelector("p"));
    if (!right || options.length < 2) return;
    const key = `${location.pathname.split("/").pop()} ${number}`;
    const score = h("span", { role: "status" });
    const again = h("button", { type: "button", hidden: "", onclick: () => (stored({}), location.reload()) }, "Start again");
    const buttons = options.map((option) => {
      const button = h("button", { type: "button", "aria-pressed": false }, h("span", {}, ...option.childNodes));
      button.onclick = () => again.hidden && show(letterOf(button), true);
      option.replaceWith(button);
      return button;
    });
    const show = (chosen, isNew) => {
      if (isNew) stored({ ...stored(), [key]: { chosen, isRight: chosen === right } });
      for (const button of chosen ? buttons : []) {
        const [isChosen, isRight] = [letterOf(button) === chosen, letterOf(button) === right];
        button.setAttribute("aria-pressed", isChosen);
        button.setAttribute("aria-disabled", true); // `disabled` would lose the focus
        if (isRight) button.append(h("b", { class: "right" }, isChosen ? "✓ right" : "✓ the answer"));
        else if (isChosen) button.append(h("b", { class: "wrong" }, "✗ wrong"));
      }
      if (isNew) details.open = true;
      again.hidden = !chosen;
      const marks = Object.values(answers).map(({ isRight }) => isRight);
      const verdict = isNew ? (chosen === right ? "Right. " : "Wrong. ") : "";
      score.textContent = marks.length ? `${verdict}${marks.filter(Boolean).length} of ${marks.length} so far` : "";
    };
    details.before(h("p", { class: "score" }, score, again));
    show(stored()[key]?.chosen, false);
  }

  if (document.readyState === "loading") addEventListener("DOMContentLoaded", start);
  else start();
})();
