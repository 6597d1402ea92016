// One head as a matrix with one row per query, and as lines from queries to keys.

/** Return the matrix of the selected head at a stage: its size, and the value and shading depth (0 to 1) of a cell. */
function stageMatrix(stage) {
  const { layer, head } = state;
  if (stage === 'softmax') {
    const rows = range(T, query => weightsOf(layer, head, query));
    const largest = rows.map(row => row[argmax(row)]);
    const value = (query, key) => (key > query ? 0 : rows[query][key]);
    const depths = { linear: value, root: (q, k) => depthOf(value(q, k)), row: (q, k) => value(q, k) / largest[q] };
    return { n: T, value, depth: depths[state.shading] };
  }
  const { n, raw } = page.stages;
  const start = (layer * H + head) * n * n;
  const scale = stage === 'raw' ? 1 : 1 / Math.sqrt(page.positions.head_size);
  const scores = raw.subarray(start, start + n * n);
  const low = scores.reduce((a, b) => Math.min(a, b)),
    high = scores.reduce((a, b) => Math.max(a, b));
  const value = (q, k) => (stage === 'masked' && k > q ? -Infinity : scores[q * n + k] * scale);
  return { n, value, depth: (q, k) => (scores[q * n + k] - low) / (high - low || 1) };
}

/** Return the first of `count` visible rows, close to `current`, so that row `at` of `total` is visible. */
function scrollTo(at, current, count, total) {
  const start = Math.min(Math.max(current, at - count + 1), at);
  return Math.min(Math.max(start, 0), total - count);
}

views.push({
  name: 'matrix',
  title: 'Matrix',
  build(panel) {
    this.from = [0, 0];
    this.note = make('p', { class: 'note' });
    this.heat = heatmap((query, key, isClick) => {
      const selection = { query, key: Math.min(key, query) };
      if (isClick) change({ ...selection, pinned: !state.pinned });
      else if (!state.pinned && (query !== state.query || key !== state.key)) change(selection);
    });
    const stages = {
      raw: 'scores: q·k',
      scaled: 'scaled: q·k / √d',
      masked: 'masked: future is −∞',
      softmax: 'softmax: the weights',
    };
    panel.append(
      intro('Rows are queries, columns are keys. The upper right is the future. No query attends to it.'),
      controls(
        choice('Stage', 'stage', stages),
        choice('Shading', 'shading', { linear: 'linear', root: 'square root', row: 'relative to the row maximum' }),
        choice('Zoom', 'zoom', { 1: '1×', 2: '2×', 4: '4×', 8: '8×' }),
        legend('low', 'high'),
      ),
      this.note,
      this.heat.canvas,
    );
  },
  draw() {
    const { layer, head, stage, query } = state;
    const name = `${layer} ${head} ${stage} ${state.shading}`;
    if (this.drawn !== name) Object.assign(this, { drawn: name, matrix: stageMatrix(stage) });
    const { n, value, depth } = this.matrix;
    const count = Math.max(1, Math.ceil(n / state.zoom));
    const [row, column] = [Math.min(query, n - 1), Math.min(currentKey(), n - 1)];
    this.from = [scrollTo(row, this.from[0], count, n), scrollTo(column, this.from[1], count, n)];
    const isMasked = (q, k) => value(q, k) === -Infinity || (stage === 'softmax' && k > q);
    this.heat.draw({
      name,
      rows: count,
      columns: count,
      color: (q, k) => (isMasked(q, k) ? FUTURE[theme()] : ramp(depth(q, k))),
      from: this.from,
      width: 640,
      cross: [row, column],
      rowLabel: glyphAt,
      columnLabel: glyphAt,
    });
    const score = value(row, column);
    const number = page.stages.coarse ? `about ${score.toPrecision(2)}` : formatNumber(score);
    const limit = n < T ? ` Scores are stored only for the first ${n} characters.` : '';
    this.note.hidden = stage === 'softmax'; // the status line shows the weight
    this.note.textContent = `Query ${positionName(row)}, key ${positionName(column)}: score ${number}.${limit}`;
    this.heat.canvas.setAttribute('aria-label', `${summary(layer, head)} Rows are queries, columns are keys.`);
  },
});

const MAX_LINES = 600;
const MAX_LINE_POSITIONS = 64;
state.threshold = 0.1;

views.push({
  name: 'lines',
  title: 'Lines',
  build(panel) {
    this.note = make('p', { class: 'note' });
    this.canvas = make('canvas', { role: 'img' });
    const thresholds = [0.5, 0.3, 0.2, 0.1, 0.05, 0.02].map(weight => [weight, String(weight)]);
    panel.append(
      intro('Queries are on the left, keys on the right. Each line is a weight; thicker lines are larger weights.'),
      controls(choice('Smallest weight', 'threshold', thresholds)),
      this.note,
      this.canvas,
    );
  },
  draw() {
    const n = Math.min(T, MAX_LINE_POSITIONS);
    const first = Math.min(Math.max(0, state.query - n + 1), T - n);
    const positions = range(n, i => first + i);
    const lines = [];
    for (const query of positions) {
      weightsOf(state.layer, state.head, query).forEach((weight, key) => {
        if (key >= first && weight >= Number(state.threshold)) lines.push([weight, query, key]);
      });
    }
    lines.sort((a, b) => b[0] - a[0]).splice(MAX_LINES);
    const lineHeight = 16;
    const width = Math.min(420, this.canvas.parentElement.clientWidth);
    const context = resize(this.canvas, width, n * lineHeight);
    const y = position => (position - first + 0.5) * lineHeight;
    for (const position of positions) {
      context.font = `${position === state.query ? 'bold ' : ''}13px ui-monospace, monospace`;
      context.fillText(`${position} ${glyphAt(position)}`, 32, y(position));
      context.fillText(`${glyphAt(position)} ${position}`, width - 32, y(position));
    }
    for (const [weight, query, key] of lines) {
      context.strokeStyle = query === state.query ? MARK[theme()] : css(ramp(0.25 + 0.75 * weight));
      context.lineWidth = 0.5 + 4 * weight;
      context.beginPath();
      context.moveTo(64, y(query));
      context.lineTo(width - 64, y(key));
      context.stroke();
    }
    const count = lines.length === MAX_LINES ? `the ${MAX_LINES} largest weights` : `${lines.length} weights`;
    const part = n < T ? `, positions ${first} to ${first + n - 1}` : '';
    this.note.textContent = `${sentence(headName(state.layer, state.head))}: ${count}${part}`;
    this.canvas.setAttribute('aria-label', `${summary(state.layer, state.head)} ${lines.length} lines.`);
  },
});
