// How the model knows where a character stands.

/** Returns the angle of pair `pair` of `width` numbers at a place, as sinusoidal and rotary positions have it. */
const angleAt = (place, pair, width) => place * 10000 ** ((-2 * pair) / width);
const formula = (place, at, width) => (at % 2 ? Math.cos : Math.sin)(angleAt(place, Math.floor(at / 2), width));

/** Returns what a score keeps at a relative distance when query and key are alike in all pairs: the mean of cosines. */
function keptAt(distance, width) {
  let sum = 0;
  for (let pair = 0; pair < width / 2; pair++) sum += Math.cos(angleAt(distance, pair, width));
  return sum / (width / 2);
}

views.push({
  name: 'positions',
  title: 'Positions',
  build(panel) {
    const { kind, table: learned, width } = page.positions;
    this.heats = [];
    const picture = (title, about, spec) => {
      const heat = heatmap(null);
      heat.canvas.setAttribute('aria-label', `${title}. ${about}`);
      panel.append(make('h2', { text: title }), make('p', { text: about }), heat.canvas);
      this.heats.push([heat, spec]);
    };
    if (kind === 'none') {
      panel.append(
        make('p', {
          class: 'note',
          text:
            'This model has no positions. What order it knows, it has from the mask: from the second ' +
            'layer on, a character can tell how much stands before it.',
        }),
      );
      return;
    }
    if (kind === 'rotary') return this.buildRotary(panel, picture);
    const tableAt = (place, at) => learned[place * width + at];
    const wide = Math.min(width, 256);
    const most = learned.reduce((a, b) => Math.max(a, Math.abs(b)), 1e-9);
    picture(
      `The ${kind} positions`,
      `A row for each place, a column for each of ${wide < width ? `the first ${wide} of ` : ''}${width} numbers.`,
      { name: 'table', rows: T, columns: wide, colour: (place, at) => ramp((tableAt(place, at) / most + 1) / 2) },
    );
    const alike = this.alike(tableAt, width);
    picture(
      'How alike two positions are',
      'The cosine between the vectors of two places, dark where they point the same way.',
      { name: 'alike', rows: T, columns: T, colour: (a, b) => ramp((alike(a, b) + 1) / 2) },
    );
    if (kind === 'learned') {
      const formulaAlike = this.alike((place, at) => formula(place, at, width), width);
      picture(
        'The same by the formula',
        'Cosines of the sines and cosines of Vaswani et al. 2017, for comparison with what was learned.',
        { name: 'formula', rows: T, columns: T, colour: (a, b) => ramp((formulaAlike(a, b) + 1) / 2) },
      );
    }
  },
  /** Returns the cosine between the vectors of two places, as a function. */
  alike(at, width) {
    const vectors = Array.from({ length: T }, (_, place) => {
      const vector = Float32Array.from({ length: width }, (_, i) => at(place, i));
      const length = Math.hypot(...vector) || 1;
      return vector.map(number => number / length);
    });
    return (a, b) => vectors[a].reduce((sum, number, i) => sum + number * vectors[b][i], 0);
  },
  buildRotary(panel, picture) {
    const width = page.positions.head_size;
    panel.append(
      make('p', {
        class: 'how',
        text:
          'Rotary positions turn the pairs of queries and keys by angles that grow with the place. A ' +
          'score then depends on how far apart two characters are, not on where they stand.',
      }),
    );
    this.curve = make('canvas', {
      role: 'img',
      'aria-label': `What a score keeps at a distance: ${[0, 1, 2, 5, 10, 50]
        .filter(d => d < T)
        .map(d => `${keptAt(d, width).toFixed(2)} at ${d}`)
        .join(', ')}`,
    });
    panel.append(
      make('h2', { text: 'What a score keeps at a distance' }),
      make('p', { text: 'For a query and a key that agree equally in all pairs: 1 is all of it.' }),
      this.curve,
    );
    picture(
      'Pair by pair',
      'A row for each pair of numbers in a head, a column for each distance; dark keeps the score, ' +
        'light turns it round. Fast pairs tell near places apart, slow ones far places.',
      {
        name: 'pairs',
        rows: width / 2,
        columns: T,
        colour: (pair, distance) => ramp((Math.cos(angleAt(distance, pair, width)) + 1) / 2),
      },
    );
  },
  draw() {
    this.heats.forEach(([heat, spec]) => heat.draw(spec));
    if (!this.curve) return;
    const points = Array.from({ length: T }, (_, distance) => keptAt(distance, page.positions.head_size));
    plot(this.curve, [{ values: points, colour: css(ramp(0.8)) }], {
      low: -0.5,
      high: 1,
      xLabel: 'distance in characters',
    });
  },
});
