// How the model represents positions.

/** Return the angle of a pair of dimensions at a position, in sinusoidal positions or RoPE with `width` dimensions. */
const angleAt = (position, pair, width) => position * 10000 ** ((-2 * pair) / width);
const sinusoidal = (position, i, width) => (i % 2 ? Math.cos : Math.sin)(angleAt(position, Math.floor(i / 2), width));

/** Return the mean cosine over all pairs: the fraction of the score that RoPE keeps if query and key are equal. */
const ropeShare = (distance, width) =>
  range(width / 2, pair => Math.cos(angleAt(distance, pair, width))).reduce((a, b) => a + b, 0) / (width / 2);

views.push({
  name: 'positions',
  title: 'Positions',
  build(panel) {
    const { kind } = page.positions;
    this.heatmaps = [];
    if (kind === 'rotary') this.buildRope(panel);
    else if (kind !== 'none') this.buildTable(panel);
    else
      panel.append(
        make('p', {
          class: 'note',
          text:
            'This model has no position embeddings. It can infer order from the causal mask: from the second layer ' +
            'on, a character can tell how many characters come before it.',
        }),
      );
  },
  addHeatmap(panel, title, text, spec) {
    const heat = heatmap(null);
    heat.canvas.setAttribute('aria-label', `${title}. ${text}`);
    panel.append(make('h2', { text: title }), make('p', { text }), heat.canvas);
    this.heatmaps.push([heat, { name: title, ...spec }]);
  },
  /** Add the cosine similarities of the vectors whose components are `valueAt(position, i)`. */
  addSimilarity(panel, title, text, valueAt) {
    const { width } = page.positions;
    const vectors = range(T, position => {
      const vector = range(width, i => valueAt(position, i));
      const length = Math.hypot(...vector) || 1;
      return vector.map(number => number / length);
    });
    const cosine = (a, b) => vectors[a].reduce((sum, number, i) => sum + number * vectors[b][i], 0);
    this.addHeatmap(panel, title, text, { rows: T, columns: T, color: (a, b) => ramp((cosine(a, b) + 1) / 2) });
  },
  buildTable(panel) {
    const { kind, table: numbers, width } = page.positions;
    const shown = Math.min(width, 256);
    const largest = numbers.reduce((a, b) => Math.max(a, Math.abs(b)), 1e-9);
    const valueAt = (position, i) => numbers[position * width + i];
    this.addHeatmap(
      panel,
      `${kind === 'learned' ? 'Learned' : 'Sinusoidal'} position embeddings`,
      `One row per position, one column per dimension${shown < width ? ` (the first ${shown} of ${width})` : ''}.`,
      { rows: T, columns: shown, color: (position, i) => ramp((valueAt(position, i) / largest + 1) / 2) },
    );
    const text = 'The cosine similarity of two position embeddings. Stronger colors mean more similar.';
    this.addSimilarity(panel, 'Similarity of positions', text, valueAt);
    if (kind !== 'learned') return;
    const comparison = 'The same for sinusoidal position embeddings (Vaswani et al. 2017), for comparison.';
    this.addSimilarity(panel, 'Similarity of sinusoidal positions', comparison, (position, i) =>
      sinusoidal(position, i, width),
    );
  },
  buildRope(panel) {
    const D = page.positions.head_size;
    const examples = [0, 1, 2, 5, 10, 50].filter(distance => distance < T);
    const label = examples.map(distance => `${ropeShare(distance, D).toFixed(2)} at distance ${distance}`).join(', ');
    this.curve = make('canvas', { role: 'img', 'aria-label': `Effect of RoPE on the score: ${label}` });
    panel.append(
      intro(
        'RoPE rotates pairs of numbers in queries and keys by angles that grow with the position. The score ' +
          'therefore depends on the distance between query and key, not on their absolute positions.',
      ),
      make('h2', { text: 'Score by distance' }),
      make('p', { text: 'The score of equal query and key vectors at each distance, relative to distance 0.' }),
      this.curve,
    );
    this.addHeatmap(
      panel,
      'Score by pair and distance',
      'One row per pair of numbers, one column per distance. Strong colors keep the score, weak colors reverse it. ' +
        'Pairs that rotate fast distinguish nearby positions. Slow pairs distinguish distant ones.',
      {
        rows: D / 2,
        columns: T,
        color: (pair, distance) => ramp((Math.cos(angleAt(distance, pair, D)) + 1) / 2),
      },
    );
  },
  draw() {
    this.heatmaps.forEach(([heat, spec]) => heat.draw(spec));
    if (!this.curve) return;
    const values = range(T, distance => ropeShare(distance, page.positions.head_size));
    const curve = { values, color: css(ramp(0.8)) };
    plot(this.curve, [curve], { low: -0.5, high: 1, xLabel: 'distance in characters', xs: range(T) });
  },
});
