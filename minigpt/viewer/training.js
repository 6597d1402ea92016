// How heads form: thumbnails and scores at several checkpoints of a run.

state.frame = 0;

views.push({
  name: 'training',
  title: 'Training',
  build(panel) {
    if (!page.training) {
      panel.append(unavailable('checkpoints from training', '--steps all'));
      return;
    }
    this.slider = make('input', {
      type: 'range',
      min: 0,
      max: page.training.frames.length - 1,
      'aria-label': 'Checkpoint',
      oninput: () => change({ frame: Number(this.slider.value) }),
    });
    this.note = note();
    this.cards = headCards((layer, head) => change({ layer, head }));
    this.title = make('h2');
    this.legend = make('p');
    this.curves = make('canvas', { role: 'img' });
    panel.append(
      intro('Move the slider to see the heads at each checkpoint. Select a head to see its scores over time.'),
      this.slider,
      this.note,
      cardGrid(this.cards),
      this.title,
      this.legend,
      make('div', {}, this.curves),
    );
  },
  draw() {
    if (!page.training) return;
    const { frames, n } = page.training;
    state.frame = Math.min(state.frame, frames.length - 1);
    const { step, loss, thumbnails, kinds } = frames[state.frame];
    this.slider.value = state.frame;
    this.slider.setAttribute('aria-valuetext', `step ${step}`);
    this.note.textContent = `Step ${step.toLocaleString('en')}, validation loss ${loss ?? 'not measured'}`;
    for (const { layer, head, canvas, badge, element } of this.cards) {
      const start = (layer * H + head) * triangle(n);
      drawThumbnail(canvas, n, (row, column) => thumbnails[start + triangle(row) + column]);
      badge.textContent = KINDS[kinds[layer][head]];
      canvas.setAttribute('aria-label', `${headName(layer, head)} at step ${step}: ${badge.textContent}`);
      markCurrent(element, layer === state.layer && head === state.head);
    }
    const curves = page.scores.patterns
      .filter(name => name !== 'next')
      .map((name, i) => ({
        name,
        color: headColor(i),
        values: frames.map(frame => frame.values[name][state.layer][state.head]),
      }))
      .filter(({ values }) => values.some(value => value !== null));
    const describe = ({ name, values }) => `${name} from ${formatNumber(values[0])} to ${formatNumber(values.at(-1))}`;
    this.title.textContent = `Scores of ${headName(state.layer, state.head)}`;
    this.legend.replaceChildren(
      ...curves.map(({ name, color, values }) => chip(color, `${name} ${formatNumber(values[state.frame])}`)),
    );
    plot(this.curves, curves, { low: 0, high: 1, xLabel: 'step', xs: frames.map(frame => frame.step) });
    this.curves.setAttribute('aria-label', curves.map(describe).join(', '));
  },
});
