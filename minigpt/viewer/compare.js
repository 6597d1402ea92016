// Two runs compared on the same text.

state.otherLayer = 'same';
state.otherHead = 'same';

views.push({
  name: 'compare',
  title: 'Compare',
  build(panel) {
    if (!page.compare) {
      panel.append(unavailable('a comparison with another run', '--compare RUN'));
      return;
    }
    const { name, step, layers, heads, loss } = page.compare;
    const titles = [
      `A: ${page.run}`,
      `B: ${name}, step ${step}, validation loss ${loss ?? 'not measured'}`,
      'A − B: blue where A attends more, orange where B does',
    ];
    this.heatmaps = titles.map(() =>
      heatmap((query, key, isClick) => {
        if (isClick || !state.pinned) change({ query, key: Math.min(key, query) });
      }),
    );
    const figures = titles.map((text, i) => make('figure', {}, make('figcaption', { text }), this.heatmaps[i].canvas));
    this.note = note();
    this.other = make('p');
    panel.append(
      intro('Two runs read the same text. Select a head in each. They share the query and the key.'),
      controls(
        choice('Layer of B', 'otherLayer', [['same', 'as in A'], ...layers.map((number, i) => [i, String(number)])]),
        choice('Head of B', 'otherHead', [['same', 'as in A'], ...range(heads, head => [head, String(head)])]),
      ),
      this.note,
      this.other,
      make('div', { class: 'figures' }, ...figures),
    );
  },
  draw() {
    if (!page.compare) return;
    const { layer, head, query } = state;
    const { layers, heads, kinds } = page.compare;
    const otherLayer = state.otherLayer === 'same' ? Math.max(0, layers.indexOf(layerNumber(layer))) : state.otherLayer;
    const otherHead = state.otherHead === 'same' ? Math.min(head, heads - 1) : state.otherHead;
    const name = `${layer} ${head} ${otherLayer} ${otherHead}`;
    if (this.drawn !== name) {
      const a = range(T, q => weightsOf(layer, head, q));
      const b = range(T, q => weightsOf(otherLayer, otherHead, q, page.compare, heads));
      Object.assign(this, { drawn: name, a, b });
    }
    const key = currentKey();
    const { a, b } = this;
    const difference = (q, k) => a[q][k] - b[q][k];
    const colors = [
      (q, k) => ramp(depthOf(a[q][k])),
      (q, k) => ramp(depthOf(b[q][k])),
      (q, k) => divergingRamp(Math.sign(difference(q, k)) * depthOf(Math.abs(difference(q, k)))),
    ];
    colors.forEach((color, i) =>
      this.heatmaps[i].draw({
        name,
        rows: T,
        columns: T,
        color: (q, k) => (k > q ? FUTURE[theme()] : color(q, k)),
        width: 360,
        cross: [query, key],
        rowLabel: glyphAt,
        columnLabel: glyphAt,
      }),
    );
    const kind = KINDS[kinds[otherLayer][otherHead]];
    this.note.textContent =
      `Query ${positionName(query)}, key ${positionName(key)}: A ${formatWeight(a[query][key])}, ` +
      `B ${formatWeight(b[query][key])}, difference about ${formatSigned(difference(query, key))}`;
    this.other.textContent = `B shows layer ${layers[otherLayer]} head ${otherHead}: ${kind}`;
    const labels = [`Run A, ${summary(layer, head)}`, `Run B, ${kind}`, `A minus B. ${this.note.textContent}`];
    labels.forEach((text, i) => this.heatmaps[i].canvas.setAttribute('aria-label', text));
  },
});
