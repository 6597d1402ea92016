/** A bar at the top, while the text or the bars of the next letter are out of view or not on the page. */

import { argmax, normalize } from "./filters.js";
import { h, percent } from "./dom.js";
import { likeliest } from "./prediction.js";
import { lineAround } from "./shading.js";
import { drawLetter, placesOf, shading } from "./text.js";
import type { App, State } from "./app.js";

/** The number of letters to name. */
const BEST = 3;
/** Pixels of a letter. */
const WIDTH = 9;

/** @param rootMargin without what this bar and the strip cover */
export function peekBar(app: App, text: HTMLElement, bars: HTMLElement, rootMargin: string) {
  const first = bars.firstElementChild as Element;
  const lines = [h("div.drawn"), h("div.drawn")];
  const best = h("p.best");
  const element = h("div.peek", { hidden: true, "aria-hidden": "true" }, ...lines, best);
  const away = new Set(([] as Element[]));
  const observer = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting, intersectionRatio } of entries) {
      const isSeen = target === text ? isIntersecting : intersectionRatio === 1; // half an answer is none
      away[isSeen ? "delete" : "add"](target);
    }
    element.hidden = away.size === 0;
    for (const line of lines) line.hidden = !away.has(text);
    best.hidden = !away.has(first);
    app.set({});
  }, { rootMargin, threshold: [0, 1] });
  observer.observe(text);
  observer.observe(first);

  function draw({ letters, selected }: State) {
    const { look } = app;
    if (element.hidden || !look) return;
    element.style.setProperty("--hue", app.hue);
    const shares = shading(app);
    const width = Math.floor(lines[0].clientWidth / WIDTH);
    const here = lineAround(letters, selected, width);
    const strongest = app.shadingHead ? argmax(shares) : selected;
    const isElsewhere = strongest < here[0] || strongest >= here[1];
    const ranges = isElsewhere ? [lineAround(letters, strongest, width), here] : [here];
    lines.forEach((line, i) => {
      const [from, to] = ranges[i] ?? [0, 0];
      const spans = letters.slice(from, to).map(() => h("span"));
      spans.forEach((span, j) => drawLetter(span, letters[from + j], shares[from + j], placesOf(app, from + j)));
      line.replaceChildren(...spans);
    });
    const chosen = normalize(app.weights(look));
    const chances = likeliest(chosen, BEST).map((id) => {
      const chance = h("span.chance", h("b", app.vocabulary.show(id)), ` ${percent(chosen[id])}`);
      chance.style.setProperty("--share", `${100 * chosen[id]}%`);
      return chance;
    });
    best.replaceChildren(...chances);
  }
  return { element, draw };
}
