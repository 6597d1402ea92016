// All heads at a glance: a small picture of each, what it looks at, and what is lost without it.

const THUMB = 64;
state.sort = 'layer';
state.filter = 'all';

const WORDS = {
  previous: 'previous character',
  self: 'itself',
  first: 'first character',
  same: 'same character earlier',
  induction: 'what followed the same character',
  word: 'start of the word',
  line: 'start of the line',
  next: 'next character',
  broad: 'broad',
  mixed: 'mixed',
};

/** Says in one sentence what a head does: "layer 2 head 3: 87% on the previous character." */
function summary(layer, head) {
  const kind = page.scores.kinds[layer][head];
  const value = page.scores.values[kind]?.[layer][head];
  const share = value === undefined || value === null ? WORDS[kind] : `${Math.round(value * 100)}% on: ${WORDS[kind]}`;
  return `${headName(layer, head)}: ${share}.`;
}

/** Says what the loss does without a head, or how to find out. */
function lossWithout(layer, head) {
  if (!page.ablation) return 'not measured; --ablate measures it';
  return `${signed(page.ablation.increases[layer][head])} nats`;
}

/** Draws one head small: each pixel is the greatest weight under it. */
function thumbnail(canvas, layer, head) {
  const n = Math.min(T, THUMB);
  const depth = new Float32Array(n * n);
  const start = (layer * H + head) * before(T);
  const small = Uint16Array.from({ length: T }, (_, place) => Math.floor((place * n) / T));
  for (let query = 0, at = start; query < T; query++) {
    for (let key = 0; key <= query; key++, at++) {
      const cell = small[query] * n + small[key];
      depth[cell] = Math.max(depth[cell], page.attention.weights[at]);
    }
  }
  drawSmall(canvas, n, (row, column) => depth[row * n + column]);
}

/** Draws a square of levels, of which those right of the diagonal are empty. */
function drawSmall(canvas, n, level) {
  const picture = pixels(n, n, (row, column) => (column > row ? null : ramp(depthOf(page.levels[level(row, column)]))));
  const scale = Math.max(1, Math.floor(96 / n));
  canvas.width = canvas.height = n * scale;
  const pen = canvas.getContext('2d');
  pen.imageSmoothingEnabled = false;
  pen.drawImage(picture, 0, 0, n * scale, n * scale);
}

views.push({
  name: 'overview',
  title: 'Overview',
  build(panel) {
    const kinds = [...new Set(page.scores.kinds.flat())].sort();
    this.cards = [];
    this.grid = make('div', { class: 'cards' });
    this.grid.style.setProperty('--heads', String(H));
    const sorts = [
      ['layer', 'layer and head'],
      ['entropy', 'entropy, narrow first'],
      ['distance', 'distance, near first'],
    ];
    if (page.ablation) sorts.push(['loss', 'loss without it']);
    panel.append(
      make('p', { class: 'how', text: 'Every head of these layers over the text. Choose one to read the text with it.' }),
      make(
        'div',
        { class: 'controls' },
        choice('Sort by', sorts, 'sort'),
        choice('Show', [['all', 'all heads'], ...kinds.map(kind => [kind, WORDS[kind]])], 'filter'),
        legend('0', '1 (square-root shading)'),
      ),
      this.grid,
    );
    for (let layer = 0; layer < L; layer++) {
      for (let head = 0; head < H; head++) this.cards.push(this.card(layer, head));
    }
    this.grid.append(...this.cards.map(card => card.button));
  },
  card(layer, head) {
    const { values, kinds } = page.scores;
    const canvas = make('canvas', { role: 'img', 'aria-label': summary(layer, head) });
    const button = make(
      'button',
      { type: 'button', class: 'card', onclick: () => change({ layer, head, view: 'text' }) },
      canvas,
      make('strong', { text: headName(layer, head) }),
      make('span', { class: 'badge', text: WORDS[kinds[layer][head]] }),
      make('span', { text: `entropy ${short(values.entropy[layer][head])}` }),
      make('span', { text: page.ablation ? `without: ${signed(page.ablation.increases[layer][head])}` : '' }),
    );
    return { layer, head, canvas, button, kind: kinds[layer][head] };
  },
  draw() {
    const order = {
      layer: card => card.layer * H + card.head,
      entropy: card => page.scores.values.entropy[card.layer][card.head],
      distance: card => page.scores.values.distance[card.layer][card.head],
      loss: card => -page.ablation.increases[card.layer][card.head],
    }[state.sort];
    const name = `${theme()} ${state.sort} ${state.filter}`;
    if (this.drawn !== name) {
      if (!this.drawn?.startsWith(theme())) this.cards.forEach(card => thumbnail(card.canvas, card.layer, card.head));
      this.grid.append(...[...this.cards].sort((a, b) => order(a) - order(b)).map(card => card.button));
      this.cards.forEach(card => {
        card.button.hidden = state.filter !== 'all' && card.kind !== state.filter;
      });
      this.grid.classList.toggle('by-layer', state.sort === 'layer' && state.filter === 'all' && H <= 8);
      this.drawn = name;
    }
    for (const card of this.cards) {
      markCurrent(card.button, card.layer === state.layer && card.head === state.head);
    }
  },
});
