/** A bar at the top with the likeliest letters, while the first one is out of view or not on the page. */

import { normalize } from "./filters.js";
import { h, percent, watch } from "./dom.js";
import { likeliest } from "./views.js";
import type { App, State } from "./app.js";

/** The number of letters to name. */
const BEST = 3;

/** @param rootMargin without what this bar and the strip cover */
export function peekBar(app: App, bars: HTMLElement, rootMargin: string) {
  const element = h("div.peek", { hidden: true, "aria-hidden": "true" }), changed = watch();
  new IntersectionObserver(([{ intersectionRatio }]) => {
    element.hidden = intersectionRatio === 1; // half an answer is none
    app.set({});
  }, { rootMargin, threshold: [0, 1] }).observe(bars.firstElementChild as Element);

  function draw({ sampling }: State) {
    const { look } = app;
    if (element.hidden || !look || !changed(look, sampling)) return;
    const chosen = normalize(app.weights(look.logits));
    const chances = likeliest(chosen, BEST).map((id) => {
      const chance = h("span.chance", h("b", app.vocabulary.show(id)), ` ${percent(chosen[id])}`);
      chance.style.setProperty("--share", `${100 * chosen[id]}%`);
      return chance;
    });
    element.replaceChildren(...chances);
  }
  return { element, draw };
}
