// The overview: a thumbnail of each head, labeled with its pattern.

const THUMBNAIL = 64;
state.sort = 'layer';
state.filter = 'all';

const KINDS = {
  previous: 'previous character',
  self: 'itself',
  first: 'first character',
  same: 'same character earlier',
  induction: 'induction',
  word: 'start of word',
  line: 'start of line',
  next: 'next character',
  broad: 'broad',
  mixed: 'mixed',
};
const kindOf = (layer, head) => page.scores.kinds[layer][head];

/** Describe a head: "Layer 2 head 3: previous character (87% of its attention)." */
function summary(layer, head) {
  const kind = kindOf(layer, head);
  const share = page.scores.values[kind]?.[layer][head];
  const isKnown = share !== undefined && share !== null;
  const percent = isKnown ? ` (${Math.round(share * 100)}% of its attention)` : '';
  return `${sentence(headName(layer, head))}: ${KINDS[kind]}${percent}.`;
}

const lossWithout = (layer, head) =>
  page.ablation ? `${formatSigned(page.ablation.increases[layer][head])} nats` : 'not measured (add --ablate)';

/** Draw the thumbnail of a head. Each pixel is the largest weight that it covers. */
function drawHead(canvas, layer, head) {
  const n = Math.min(T, THUMBNAIL);
  const levels = new Float32Array(n * n);
  const pixelOf = position => Math.floor((position * n) / T);
  for (let query = 0, at = (layer * H + head) * triangle(T); query < T; query++) {
    for (let key = 0; key <= query; key++, at++) {
      const cell = pixelOf(query) * n + pixelOf(key);
      levels[cell] = Math.max(levels[cell], page.attention.weights[at]);
    }
  }
  drawThumbnail(canvas, n, (row, column) => levels[row * n + column]);
}

views.push({
  name: 'overview',
  title: 'Overview',
  build(panel) {
    const kinds = [...new Set(page.scores.kinds.flat())].sort();
    const { entropy, distance } = page.scores.values;
    const increases = page.ablation?.increases;
    this.cards = headCards((layer, head) => change({ layer, head, view: 'text' }));
    for (const { layer, head, canvas, badge, element } of this.cards) {
      canvas.setAttribute('aria-label', summary(layer, head));
      badge.textContent = KINDS[kindOf(layer, head)];
      element.append(make('span', { text: `entropy ${formatNumber(entropy[layer][head])}` }));
      if (increases) element.append(make('span', { text: `loss without: ${formatSigned(increases[layer][head])}` }));
    }
    this.orders = {
      layer: ({ layer, head }) => layer * H + head,
      entropy: ({ layer, head }) => entropy[layer][head],
      distance: ({ layer, head }) => distance[layer][head],
      loss: ({ layer, head }) => -increases[layer][head],
    };
    const sorts = { layer: 'layer and head', entropy: 'entropy', distance: 'distance' };
    if (increases) sorts.loss = 'loss without the head';
    this.grid = cardGrid(this.cards);
    panel.append(
      intro('The attention of each head over the whole text. Select a head to see it in the text.'),
      controls(
        choice('Sort by', 'sort', sorts),
        choice('Show', 'filter', [['all', 'all heads'], ...kinds.map(kind => [kind, KINDS[kind]])]),
        legend('0', '1 (square-root shading)'),
      ),
      this.grid,
    );
  },
  draw() {
    const name = `${theme()} ${state.sort} ${state.filter}`;
    if (this.drawn !== name) {
      if (!this.drawn?.startsWith(theme())) this.cards.forEach(card => drawHead(card.canvas, card.layer, card.head));
      const order = this.orders[state.sort];
      this.grid.append(...[...this.cards].sort((a, b) => order(a) - order(b)).map(card => card.element));
      this.cards.forEach(({ element, layer, head }) => {
        element.hidden = state.filter !== 'all' && kindOf(layer, head) !== state.filter;
      });
      this.grid.classList.toggle('by-layer', state.sort === 'layer' && state.filter === 'all' && H <= 8);
      this.drawn = name;
    }
    for (const { element, layer, head } of this.cards) {
      markCurrent(element, layer === state.layer && head === state.head);
    }
  },
});
