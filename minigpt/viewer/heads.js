// All scores of all heads, the differences between heads, and the strongest keys of the query.

const STRONGEST = 10;

/** Make the table of the strongest keys, which shows the shading as numbers. */
function strongestKeys() {
  const rows = range(STRONGEST, () => range(3, () => document.createTextNode('')));
  const made = table('', ['position', 'character', 'weight'], rows);
  updaters.push(() => {
    const row = selectedRow();
    const best = strongestIn(row, state.head, false);
    const order = range(row.length).sort((a, b) => (b === best) - (a === best) || row[b] - row[a] || b - a);
    rows.forEach((cells, i) => {
      const key = order[i];
      cells[0].parentElement.parentElement.hidden = key === undefined;
      if (key === undefined) return;
      const weight = (isRowExact() ? '' : 'about ') + formatWeight(row[key]);
      [String(key), glyphAt(key), weight].forEach((text, column) => {
        cells[column].data = text;
      });
    });
    made.caption.textContent = `Strongest keys of ${positionName(state.query)}, ${rowName()}`;
  });
  return made;
}

/** Return all scores as CSV. The first row is the baseline of uniform attention. */
function scoresAsCsv() {
  const { values, uniform, kinds } = page.scores;
  const names = Object.keys(values);
  const heads = range(L, layer =>
    range(H, head => [
      layerNumber(layer),
      head,
      kinds[layer][head],
      ...names.map(name => values[name][layer][head] ?? ''),
    ]),
  );
  const baseline = ['', '', 'uniform', ...names.map(name => uniform[name] ?? '')];
  return [['layer', 'head', 'kind', ...names], baseline, ...heads.flat()].map(row => row.join(',')).join('\n') + '\n';
}

/** Format a score, with its ratio to the baseline. */
function formatScore(name, layer, head) {
  const value = page.scores.values[name][layer][head],
    uniform = page.scores.uniform[name];
  if (value === null) return '–';
  const ratio = uniform ? ` (${(value / uniform).toPrecision(2).replace('e+', 'e')}×)` : '';
  const isShare = page.scores.patterns.includes(name) || name === 'top';
  return (isShare ? value.toFixed(3) : formatNumber(value)) + ratio;
}

views.push({
  name: 'heads',
  title: 'Head scores',
  build(panel) {
    const { values, uniform, descriptions, divergence } = page.scores;
    const names = Object.keys(values);
    const csv = make('textarea', { rows: 6, readonly: true, 'aria-label': 'Scores as CSV', hidden: true });
    const message = make('span', { role: 'status' });
    const copy = button('Copy as CSV', async () => {
      csv.value = scoresAsCsv();
      try {
        await navigator.clipboard.writeText(csv.value);
        message.textContent = 'Copied.';
      } catch {
        csv.hidden = false;
        csv.select();
        message.textContent = 'Copy the text below:';
      }
    });
    this.heads = range(L * H, i => {
      const [layer, head] = [Math.floor(i / H), i % H];
      return [layer, head, button(`${layerNumber(layer)}.${head}`, () => change({ layer, head }), { class: 'link' })];
    });
    const rows = this.heads.map(([layer, head, link]) => [
      link,
      KINDS[kindOf(layer, head)],
      ...names.map(name => formatScore(name, layer, head)),
    ]);
    const baseline = ['uniform', 'baseline', ...names.map(name => formatNumber(uniform[name]))];
    const scores = table(
      'Scores by head, and their ratio to the baseline',
      ['head', 'kind', ...names],
      [baseline, ...rows],
    );
    const kinds = [
      ['kind', 'the pattern that is furthest above the baseline'],
      ['broad', 'no pattern; the attention is spread almost evenly'],
      ['mixed', 'no pattern; the attention is more focused'],
    ];
    panel.append(
      intro(
        'The share of attention that goes to each kind of key, averaged over queries with such a key. The first row ' +
          'is the baseline: a head that attends equally to all characters so far.',
      ),
      make('p', {}, copy, ' ', message),
      csv,
      scrollArea('Scores by head', scores),
      make(
        'details',
        {},
        make('summary', { text: 'What the columns mean' }),
        definitions([...kinds, ...names.map(name => [name, descriptions[name]])]),
      ),
    );
    if (divergence) this.buildDivergence(panel, divergence);
  },
  buildDivergence(panel, divergence) {
    const name = i => headName(Math.floor(i / H), i % H);
    this.note = make('p', { class: 'note' });
    this.nearest = make('p', { 'aria-live': 'polite' });
    this.heat = heatmap((row, column) => {
      this.note.textContent = `${name(row)} and ${name(column)}: ${formatNumber(divergence[row * L * H + column])}`;
    });
    this.heat.canvas.setAttribute('aria-label', 'Jensen-Shannon divergence between all pairs of heads');
    panel.append(
      make('h2', { text: 'Differences between heads' }),
      make('p', {
        text:
          'The Jensen-Shannon divergence between two heads: 0 if they attend to the same keys, 1 if they share none. ' +
          'Hover over a cell to see its value.',
      }),
      this.nearest,
      this.note,
      this.heat.canvas,
    );
  },
  draw() {
    for (const [layer, head, link] of this.heads) {
      link.closest('tr').classList.toggle('selected', layer === state.layer && head === state.head);
    }
    if (!this.heat) return;
    const { divergence } = page.scores;
    const n = L * H,
      selected = state.layer * H + state.head;
    const distance = other => divergence[selected * n + other];
    const others = range(n)
      .filter(other => other !== selected)
      .sort((a, b) => distance(a) - distance(b));
    const name = other => `${headName(Math.floor(other / H), other % H)} (${formatNumber(distance(other))})`;
    this.nearest.textContent = others.length
      ? `${sentence(headName(state.layer, state.head))} is most like ${name(others[0])} and least like ${name(others.at(-1))}.`
      : 'The model has only one head.';
    this.heat.draw({
      name: 'divergence',
      rows: n,
      columns: n,
      width: 400,
      color: (row, column) => ramp(divergence[row * n + column]),
    });
  },
});
