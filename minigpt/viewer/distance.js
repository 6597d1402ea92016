// Distance and entropy of all heads, by layer.

views.push({
  name: 'distance',
  title: 'Distance and entropy',
  build(panel) {
    const { values, uniform, descriptions } = page.scores;
    panel.append(
      intro(
        'One dot per head, by layer. The dashed line is the baseline of uniform attention. Heads often attend to the ' +
          'first character, which increases the mean distance. The second chart ignores it.',
      ),
    );
    this.charts = ['distance', 'distance without first', 'entropy'].map(name => {
      const mean = row => (row.length ? formatNumber(row.reduce((a, b) => a + b) / row.length) : '–');
      const means = values[name]
        .map((row, layer) => `layer ${layerNumber(layer)}: ${mean(row.filter(value => value !== null))}`)
        .join(', ');
      const label = `${name}, mean by layer: ${means}; uniform: ${formatNumber(uniform[name])}`;
      const canvas = make('canvas', { role: 'img', 'aria-label': label });
      const description =
        name === 'distance without first' ? 'the same, ignoring the first character' : descriptions[name];
      panel.append(
        make('h2', { text: sentence(name) }),
        make('p', { text: sentence(`${description}. Means: ${means}.`) }),
        canvas,
      );
      return [name, canvas];
    });
  },
  draw() {
    for (const [name, canvas] of this.charts)
      this.drawChart(canvas, page.scores.values[name], page.scores.uniform[name]);
  },
  drawChart(canvas, values, uniform) {
    const width = Math.min(640, canvas.parentElement.clientWidth),
      height = 200,
      left = 44,
      top = 12;
    const context = resize(canvas, width, height);
    const highest = Math.max(...values.flat(), uniform ?? 0, 1e-9) * 1.08;
    const y = value => top + (height - top - 24) * (1 - value / highest);
    const baseline = y(uniform ?? 0);
    context.setLineDash([6, 4]);
    context.beginPath();
    context.moveTo(left, baseline);
    context.lineTo(width, baseline);
    context.stroke();
    context.setLineDash([]);
    context.textAlign = 'left';
    context.fillText('uniform', left + 2, baseline - 8);
    context.textAlign = 'right';
    context.fillText(formatNumber(uniform), left - 4, baseline);
    context.fillText('0', left - 4, y(0));
    context.textAlign = 'center';
    const step = (width - left) / L;
    for (let layer = 0; layer < L; layer++) {
      context.fillStyle = textColor();
      context.fillText(`layer ${layerNumber(layer)}`, left + step * (layer + 0.5), height - 8);
      values[layer].forEach((value, head) => {
        if (value === null) return;
        const x = left + step * (layer + (head + 0.5) / H);
        const isSelected = layer === state.layer && head === state.head;
        context.fillStyle = css(ramp(isSelected ? 1 : 0.6));
        context.beginPath();
        context.arc(x, y(value), isSelected ? 6 : 4, 0, 7);
        context.fill();
        context.fillStyle = textColor();
        if (step / H > 14) context.fillText(String(head), x, y(value) + (y(value) < height - 50 ? 14 : -12));
      });
    }
  },
});
