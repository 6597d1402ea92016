/** Recorded numbers of a model that is too large for the page: what minigpt computed for the text of the page. */

/** @typedef {import("./types.js").Model} Model */

/**
 * Answer a request about the selected letter, as a session does.
 * @param {Model} model @param {number} vocabulary its size V
 * @param {{id: number, model: number, ids: number[], at: number, from: number}} request
 * @param {{ids: number[], selected: number}} start the text of the page, and its token for which effects were recorded
 * @returns {any[]} replies
 */
export function recall(model, vocabulary, { id, model: index, ids, at, from }, start) {
  const { recorded, config, heads } = model;
  const position = from + at - recorded.skipped;
  const edited = ids.findIndex((token, t) => token !== start.ids[from + t]);
  const known = edited < 0 ? ids.length : edited;
  if (at >= known || !recorded.top[position]) {
    const message = `${model.name} is too large for this page, which has no numbers of it for this letter.`;
    return [{ id, model: index, kind: "error", message }];
  }
  /** Logits (V) of recorded probabilities. The other tokens share the rest. @param {[number, number][]} top */
  const logits = (top) => {
    const rest = 1 - top.reduce((sum, [, probability]) => sum + probability, 0);
    const all = new Float32Array(vocabulary).fill(Math.log(Math.max(0, rest) / (vocabulary - top.length)));
    for (const [token, probability] of top) all[token] = Math.log(probability);
    return all;
  };
  const actual = (/** @type {number} */ t) => (t < known ? recorded.actual[t + from - recorded.skipped] : null);
  const surprise = Float32Array.from(ids, (_, t) => actual(t) ?? NaN);
  const attention = new Float32Array(heads.length * config.n_head * (at + 1));
  if (heads.length) {
    const bytes = atob(recorded.attention);
    const size = bytes.length / (heads.length * config.n_head);
    for (let head = 0; head < heads.length * config.n_head; head++) {
      const row = head * size + (position * (position + 1)) / 2;
      const first = Math.max(0, position - at);
      for (let t = first; t <= position; t++) {
        attention[head * (at + 1) + t - position + at] = (bytes.charCodeAt(row + t) / 255) ** 2;
      }
    }
  }
  const replies = /** @type {any[]} */ ([
    { id, model: index, kind: "look", logits: logits(recorded.top[position]), surprise, attention },
  ]);
  if (from + at === start.selected) {
    recorded.effects.forEach((/** @type {[number, number][]} */ top, /** @type {number} */ head) => {
      const place = { layer: Math.floor(head / config.n_head), head: head % config.n_head };
      replies.push({ id, model: index, kind: "effect", ...place, logits: logits(top) });
    });
  }
  return [...replies, { id, model: index, kind: "done" }];
}
