// One head as a table, a row for each query; and the same as lines between two columns.

const MINUS = -Infinity;

/** Returns the value of a cell of the matrix at the selected stage, and how deep it is shaded, from 0 to 1. */
function stageOf(stage) {
  const { layer, head } = state;
  if (stage === 'softmax') {
    const rows = Array.from({ length: T }, (_, query) => weightsOf(layer, head, query));
    const most = rows.map(row => row[greatest(row)]);
    const value = (query, key) => (key > query ? 0 : rows[query][key]);
    const depths = { linear: value, root: (q, k) => depthOf(value(q, k)), row: (q, k) => value(q, k) / most[q] };
    return { n: T, value, depth: depths[state.scale] };
  }
  const { n, raw } = page.stages;
  const start = (layer * H + head) * n * n;
  const scale = stage === 'raw' ? 1 : 1 / Math.sqrt(page.positions.head_size);
  const table = raw.subarray(start, start + n * n);
  const low = table.reduce((a, b) => Math.min(a, b)),
    high = table.reduce((a, b) => Math.max(a, b));
  const value = (query, key) => (stage === 'masked' && key > query ? MINUS : table[query * n + key] * scale);
  return { n, value, depth: (q, k) => (table[q * n + k] - low) / (high - low || 1) };
}

/** Returns the first row or column to show, so that `at` is among `count` of `all`, moving as little as can be. */
function windowStart(at, before, count, all) {
  const start = Math.min(Math.max(before, at - count + 1), at);
  return Math.min(Math.max(start, 0), all - count);
}

views.push({
  name: 'matrix',
  title: 'Matrix',
  build(panel) {
    this.note = make('p', { class: 'note' });
    this.from = [0, 0];
    this.heat = heatmap((query, key, isClick) => {
      if (isClick) change({ query, key: Math.min(key, query), pinned: !state.pinned });
      else if (!state.pinned && (query !== state.query || key !== state.key))
        change({ query, key: Math.min(key, query) });
    });
    const stages = [
      ['raw', 'raw: q·k'],
      ['scaled', 'scaled: q·k / √d'],
      ['masked', 'masked: the future is −∞'],
      ['softmax', 'softmax: the weights'],
    ];
    panel.append(
      make('p', {
        class: 'how',
        text: 'A row is a query, a column a key. The upper right is the future, which no query sees.',
      }),
      make(
        'div',
        { class: 'controls' },
        choice('Stage', stages, 'stage'),
        choice(
          'Shading',
          [
            ['linear', 'linear'],
            ['root', 'square root'],
            ['row', 'share of the row’s greatest'],
          ],
          'scale',
        ),
        choice(
          'Zoom',
          [
            [1, 'all'],
            [2, '2×'],
            [4, '4×'],
            [8, '8×'],
          ],
          'zoom',
        ),
        legend('least', 'greatest'),
      ),
      this.note,
      this.heat.canvas,
    );
  },
  draw() {
    const { layer, head, stage, scale, query } = state;
    const name = `${layer} ${head} ${stage} ${scale}`;
    if (this.drawn !== name) Object.assign(this, { drawn: name, shown: stageOf(stage) });
    const { n, value, depth } = this.shown;
    const count = Math.max(1, Math.ceil(n / state.zoom));
    const [row, column] = [Math.min(query, n - 1), Math.min(currentKey(), n - 1)];
    this.from = [windowStart(row, this.from[0], count, n), windowStart(column, this.from[1], count, n)];
    const colour = (q, k) =>
      value(q, k) === MINUS || (stage === 'softmax' && k > q) ? FUTURE[theme()] : ramp(depth(q, k));
    this.heat.draw({
      name,
      rows: count,
      columns: count,
      colour,
      from: this.from,
      width: 640,
      cross: [row, column],
      rowSign: sign,
      columnSign: sign,
    });
    const number =
      stage === 'softmax'
        ? two(value(row, column))
        : page.stages.coarse
          ? `about ${value(row, column).toPrecision(2)}`
          : short(value(row, column));
    const firsts = stage !== 'softmax' && n < T ? ` Before the softmax the page holds the first ${n} characters.` : '';
    this.note.hidden = stage === 'softmax';
    this.note.textContent =
      `${headName(layer, head)}, ${stage}: query ${row} ${spoken(row)}, key ${column} ` +
      `${spoken(column)}: ${number}.${firsts}`;
    this.heat.canvas.setAttribute('aria-label', `${summary(layer, head)} Rows are queries, columns are keys.`);
  },
});

const THRESHOLDS = [0.5, 0.3, 0.2, 0.1, 0.05, 0.02];
const MOST_LINES = 600,
  MOST_LINED = 64;
state.threshold = 0.1;

views.push({
  name: 'lines',
  title: 'Lines',
  build(panel) {
    this.note = make('p', { class: 'note' });
    this.canvas = make('canvas', { role: 'img' });
    panel.append(
      make('p', {
        class: 'how',
        text: 'Left the queries, right the keys; a line is a weight above the threshold, the thicker the larger.',
      }),
      make(
        'div',
        { class: 'controls' },
        choice(
          'Lines from',
          THRESHOLDS.map(share => [share, String(share)]),
          'threshold',
        ),
      ),
      this.note,
      this.canvas,
    );
  },
  draw() {
    const n = Math.min(T, MOST_LINED),
      first = Math.min(Math.max(0, state.query - n + 1), T - n);
    const height = 16,
      width = Math.min(420, this.canvas.parentElement.clientWidth);
    const pen = sized(this.canvas, width, n * height);
    const links = [];
    for (let query = first; query < first + n; query++) {
      weightsOf(state.layer, state.head, query).forEach((weight, key) => {
        if (key >= first && weight >= Number(state.threshold)) links.push([weight, query, key]);
      });
    }
    links.sort((a, b) => b[0] - a[0]).splice(MOST_LINES);
    const y = place => (place - first + 0.5) * height;
    for (const [weight, query, key] of links) {
      const selected = query === state.query;
      pen.strokeStyle = selected ? (theme() === 'dark' ? '#FFB057' : '#B25200') : css(ramp(0.25 + 0.75 * weight));
      pen.lineWidth = 0.5 + 4 * weight;
      pen.beginPath();
      pen.moveTo(64, y(query));
      pen.lineTo(width - 64, y(key));
      pen.stroke();
    }
    pen.fillStyle = inkNow();
    for (let place = first; place < first + n; place++) {
      pen.font = `${place === state.query ? 'bold ' : ''}13px ui-monospace, monospace`;
      pen.fillText(`${place} ${sign(place)}`, 32, y(place));
      pen.fillText(`${sign(place)} ${place}`, width - 32, y(place));
    }
    const cut = n < T ? ` The ${n} characters from ${first} on.` : '';
    this.note.textContent =
      `${headName(state.layer, state.head)}: ${links.length} ` +
      `lines${links.length === MOST_LINES ? ', the strongest' : ''}.${cut}`;
    this.canvas.setAttribute(
      'aria-label',
      `${summary(state.layer, state.head)} ${links.length} links of ${state.threshold} or more.`,
    );
  },
});
