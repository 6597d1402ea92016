// Numbers as dots and curves: distance and entropy over the layers, the film over the checkpoints, another run beside.

/** Draws curves of {values, colour}, with numbers at both ends of each axis. */
function plot(canvas, curves, { low, high, xLabel, xs }) {
  const width = Math.min(640, canvas.parentElement.clientWidth),
    height = 180,
    left = 44,
    bottom = 24;
  const pen = sized(canvas, width, height);
  const count = Math.max(...curves.map(curve => curve.values.length));
  const places = xs ?? Array.from({ length: count }, (_, i) => i);
  const x = i => left + (width - left - 10) * (count > 1 ? (places[i] - places[0]) / (places.at(-1) - places[0]) : 0.5);
  const y = value => 10 + (height - bottom - 10) * (1 - (value - low) / (high - low || 1));
  pen.fillStyle = pen.strokeStyle = inkNow();
  pen.strokeRect(left, 10, width - left - 10, height - bottom - 10);
  pen.textAlign = 'right';
  [low, high].forEach(value => pen.fillText(short(value), left - 4, y(value)));
  pen.textAlign = 'center';
  pen.fillText(xLabel, (left + width) / 2, height - 8);
  pen.fillText(String(places[0] ?? 0), left, height - 8);
  if (count > 1) pen.fillText(String(places.at(-1)), width - 24, height - 8);
  for (const { values, colour } of curves) {
    pen.strokeStyle = pen.fillStyle = colour;
    pen.lineWidth = 2;
    pen.beginPath();
    values.forEach((value, i) => {
      if (value !== null) pen.lineTo(x(i), y(value));
    });
    pen.stroke();
    if (count <= 20)
      values.forEach((value, i) => {
        if (value !== null) pen.fillRect(x(i) - 2, y(value) - 2, 5, 5);
      });
  }
}

views.push({
  name: 'spread',
  title: 'Distance and entropy',
  build(panel) {
    panel.append(
      make('p', {
        class: 'how',
        text:
          'A number for each head, by layer. The line is a head that looks everywhere alike. Heads ' +
          'often rest on the first character, which makes distances long: see them with it left aside ' +
          'too.',
      }),
    );
    this.charts = ['distance', 'distance without first', 'entropy'].map(name => {
      const values = page.scores.values[name];
      const means = values
        .map((row, layer) => [layer, row.filter(value => value !== null)])
        .map(([layer, row]) => `layer ${layerName(layer)}: ${row.length ? short(row.reduce((a, b) => a + b) / row.length) : '–'}`)
        .join(', ');
      const canvas = make('canvas', {
        role: 'img',
        'aria-label': `${name}, mean of each layer: ${means}; uniform ${short(page.scores.uniform[name])}`,
      });
      panel.append(
        make('h2', { text: name === 'entropy' ? 'entropy, in nats' : `${name}, in characters` }),
        make('p', { text: `${page.scores.descriptions[name]}; means: ${means}` }),
        canvas,
      );
      return [name, canvas];
    });
  },
  draw() {
    for (const [name, canvas] of this.charts) {
      const values = page.scores.values[name],
        uniform = page.scores.uniform[name];
      const width = Math.min(640, canvas.parentElement.clientWidth),
        height = 200,
        left = 44,
        top = 12;
      const pen = sized(canvas, width, height);
      const most = Math.max(...values.flat(), uniform ?? 0, 1e-9) * 1.08;
      const y = value => top + (height - top - 24) * (1 - value / most);
      pen.fillStyle = pen.strokeStyle = inkNow();
      pen.setLineDash([6, 4]);
      pen.beginPath();
      pen.moveTo(left, y(uniform ?? 0));
      pen.lineTo(width, y(uniform ?? 0));
      pen.stroke();
      pen.setLineDash([]);
      pen.textAlign = 'left';
      pen.fillText('uniform', left + 2, y(uniform ?? 0) - 8);
      pen.textAlign = 'right';
      pen.fillText(short(uniform), left - 4, y(uniform ?? 0));
      pen.fillText('0', left - 4, y(0));
      pen.textAlign = 'center';
      const step = (width - left) / L;
      for (let layer = 0; layer < L; layer++) {
        pen.fillStyle = inkNow();
        pen.fillText(`layer ${layerName(layer)}`, left + step * (layer + 0.5), height - 8);
        for (let head = 0; head < H; head++) {
          const value = values[layer][head];
          if (value === null) continue;
          const x = left + step * (layer + (head + 0.5) / H);
          const selected = layer === state.layer && head === state.head;
          pen.fillStyle = css(ramp(selected ? 1 : 0.6));
          pen.beginPath();
          pen.arc(x, y(value), selected ? 6 : 4, 0, 7);
          pen.fill();
          pen.fillStyle = inkNow();
          if (step / H > 14) pen.fillText(String(head), x, y(value) + (y(value) < height - 50 ? 14 : -12));
        }
      }
    }
  },
});

state.frame = 0;

views.push({
  name: 'film',
  title: 'Film',
  build(panel) {
    if (!page.training)
      return panel.append(missing('How heads form in the course of training appears with', '--steps all'));
    const { frames } = page.training;
    this.slider = make('input', {
      type: 'range',
      min: 0,
      max: frames.length - 1,
      step: 1,
      'aria-label': 'Checkpoint',
      oninput: () => change({ frame: Number(this.slider.value) }),
    });
    this.note = make('p', { class: 'note', 'aria-live': 'polite' });
    this.grid = make('div', { class: 'cards' });
    this.cards = [];
    for (let layer = 0; layer < L; layer++) {
      for (let head = 0; head < H; head++) {
        const canvas = make('canvas', { role: 'img' }),
          badge = make('span', { class: 'badge' });
        const button = make(
          'button',
          { type: 'button', class: 'card', onclick: () => change({ layer, head }) },
          canvas,
          make('strong', { text: headName(layer, head) }),
          badge,
        );
        this.cards.push({ layer, head, canvas, badge, button });
        this.grid.append(button);
      }
    }
    this.curve = make('canvas', { role: 'img' });
    this.title = make('h2');
    this.key = make('p');
    panel.append(
      make('p', {
        class: 'how',
        text: 'Move the slider to see the heads at each checkpoint; choose a head for its scores over the steps.',
      }),
      this.slider,
      this.note,
      this.grid,
      this.title,
      this.key,
      make('div', {}, this.curve),
    );
    return undefined;
  },
  draw() {
    if (!page.training) return;
    const { frames, n } = page.training;
    state.frame = Math.min(state.frame, frames.length - 1);
    const frame = frames[state.frame];
    this.slider.value = state.frame;
    this.slider.setAttribute('aria-valuetext', `step ${frame.step}`);
    const loss = frame.loss ?? 'never measured';
    this.note.textContent = `step ${frame.step.toLocaleString('en')}, validation loss, measured last: ${loss}`;
    for (const { layer, head, canvas, badge, button } of this.cards) {
      const start = (layer * H + head) * before(n);
      drawSmall(canvas, n, (row, column) => frame.thumbnails[start + before(row) + column]);
      badge.textContent = WORDS[frame.kinds[layer][head]];
      canvas.setAttribute('aria-label', `${headName(layer, head)} at step ${frame.step}: ${badge.textContent}`);
      markCurrent(button, layer === state.layer && head === state.head);
    }
    const names = page.scores.patterns.filter(
      name => name !== 'next' && frames.some(one => one.values[name][state.layer][state.head] !== null),
    );
    const curves = names.map((name, i) => ({
      name,
      colour: headColour(i),
      values: frames.map(one => one.values[name][state.layer][state.head]),
    }));
    this.title.textContent = `Scores of ${headName(state.layer, state.head)} over the steps`;
    this.key.replaceChildren(
      ...curves.map(({ name, colour, values }) => {
        const chip = make('span', { class: 'chip' });
        chip.style.backgroundColor = colour;
        return make('span', { class: 'legend' }, chip, make('span', { text: `${name} ${short(values[state.frame])}` }));
      }),
    );
    plot(this.curve, curves, { low: 0, high: 1, xLabel: 'step', xs: frames.map(one => one.step) });
    this.curve.setAttribute(
      'aria-label',
      curves.map(({ name, values }) => `${name} from ${short(values[0])} to ${short(values.at(-1))}`).join(', '),
    );
  },
});

state.otherLayer = 'same';
state.otherHead = 'same';

views.push({
  name: 'compare',
  title: 'Compare',
  build(panel) {
    if (!page.compare)
      return panel.append(missing('Another run over the same text, and the difference, appear with', '--compare RUN'));
    const { name, step, layers, heads, loss } = page.compare;
    const point = (query, key, isClick) => {
      if (isClick || !state.pinned) change({ query, key: Math.min(key, query) });
    };
    this.parts = [
      `A: ${page.run}`,
      `B: ${name}, step ${step}, validation loss measured last ${loss ?? 'not yet'}`,
      'A − B: blue where A looks more, orange where B does',
    ].map(title => {
      const heat = heatmap(point);
      return { heat, figure: make('figure', {}, make('figcaption', { text: title }), heat.canvas) };
    });
    this.note = make('p', { class: 'note', 'aria-live': 'polite' });
    this.other = make('span');
    panel.append(
      make('p', { class: 'how', text: 'The same text read by two runs, one head of each; the cursor is in both.' }),
      make(
        'div',
        { class: 'controls' },
        choice('Layer of B', [['same', 'as in A'], ...layers.map((layer, at) => [at, String(layer)])], 'otherLayer'),
        choice(
          'Head of B',
          [['same', 'as in A'], ...Array.from({ length: heads }, (_, head) => [head, String(head)])],
          'otherHead',
        ),
      ),
      this.note,
      make('p', {}, 'B shows ', this.other),
      make('div', { class: 'pictures' }, ...this.parts.map(part => part.figure)),
    );
    return undefined;
  },
  draw() {
    if (!page.compare) return;
    const { layer, head, query } = state;
    const otherLayer =
      state.otherLayer === 'same' ? Math.max(0, page.compare.layers.indexOf(layerName(layer))) : state.otherLayer;
    const otherHead = state.otherHead === 'same' ? Math.min(head, page.compare.heads - 1) : state.otherHead;
    const name = `${layer} ${head} ${otherLayer} ${otherHead}`;
    if (this.drawn !== name) {
      const rows = of => Array.from({ length: T }, (_, place) => of(place));
      Object.assign(this, {
        drawn: name,
        a: rows(q => weightsOf(layer, head, q)),
        b: rows(q => weightsOf(otherLayer, otherHead, q, page.compare, page.compare.heads)),
      });
    }
    const key = currentKey(),
      { a, b } = this;
    const past = colour => (q, k) => (k > q ? FUTURE[theme()] : colour(q, k));
    const gap = (q, k) => a[q][k] - b[q][k];
    const colours = [
      past((q, k) => ramp(depthOf(a[q][k]))),
      past((q, k) => ramp(depthOf(b[q][k]))),
      past((q, k) => rampSigned(Math.sign(gap(q, k)) * depthOf(Math.abs(gap(q, k))))),
    ];
    colours.forEach((colour, i) =>
      this.parts[i].heat.draw({
        name,
        rows: T,
        columns: T,
        colour,
        width: 360,
        cross: [query, key],
        rowSign: sign,
        columnSign: sign,
      }),
    );
    const kind = WORDS[page.compare.kinds[otherLayer][otherHead]];
    this.note.textContent =
      `query ${query} ${spoken(query)}, key ${key} ${spoken(key)}: A ${two(a[query][key])}, B ` +
      `${two(b[query][key])}, difference about ${signed(gap(query, key))}`;
    this.other.textContent = `layer ${page.compare.layers[otherLayer]} head ${otherHead}: ${kind}`;
    this.parts[0].heat.canvas.setAttribute('aria-label', `Run A, ${summary(layer, head)}`);
    this.parts[1].heat.canvas.setAttribute('aria-label', `Run B, ${kind}`);
    this.parts[2].heat.canvas.setAttribute('aria-label', `Difference of the two: ${this.note.textContent}`);
  },
});
