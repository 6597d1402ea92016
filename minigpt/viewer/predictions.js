// The most likely next characters, after the whole model and after each layer (logit lens).

/** Return the most likely next characters after `position`, read after layer `row` - 1: {glyph, name, probability}. */
function topNext(row, position) {
  const { symbols, permille } = page.predictions;
  const top = permille.shape[2];
  return range(top, i => {
    const at = (row * T + position) * top + i;
    const [glyph, name] = page.symbols[symbols[at]];
    return { glyph, name, probability: permille[at] / 1000 };
  });
}

views.push({
  name: 'next',
  title: 'Next character',
  build(panel) {
    const { surprisal, permille } = page.predictions;
    const [rows, , top] = permille.shape;
    const highest = Math.max(...surprisal, 1);
    this.text = textStrip('The text, shaded by surprisal. The selected character is the query.', cells => {
      cells.forEach((cell, position) => {
        fill(cell, position === 0 ? null : ramp(surprisal[position - 1] / highest));
        cell.classList.toggle('query', position === state.query);
      });
    });
    this.note = note();
    const rowTitle = row =>
      row === 0 ? 'embedding' : row === rows - 1 ? 'last layer (the model)' : `layer ${row - 1}`;
    this.cells = range(rows, row => [rowTitle(row), ...range(top + 1, () => make('span'))]);
    const headings = ['after', ...range(top, i => `${i + 1}.`), 'actual'];
    const title = 'Most likely next characters after each layer';
    panel.append(
      intro(
        'The stronger the color, the less the model expected the character. The table shows the most likely ' +
          'characters after the selected one. For earlier layers, it applies the final norm and the output layer to ' +
          'the output of the layer (logit lens).',
      ),
      controls(legend('0 bits', `${formatNumber(highest)} bits`)),
      this.text.strip,
      this.note,
      scrollArea(title, table(title, headings, this.cells)),
    );
  },
  draw() {
    this.text.draw();
    const position = state.query;
    const isLast = position + 1 === T;
    const { actual, surprisal } = page.predictions;
    this.cells.forEach(([, ...cells], row) => {
      topNext(row, position).forEach(({ glyph, probability }, i) => {
        cells[i].replaceChildren(
          make('span', { class: 'character', dir: 'ltr', text: glyph }),
          ` ${formatPercent(probability)}`,
        );
        fill(cells[i], ramp(probability));
      });
      cells.at(-1).textContent = isLast ? '–' : formatPercent(actual[row * (T - 1) + position] / 1000);
    });
    const [{ name, probability }] = topNext(this.cells.length - 1, position);
    const next = isLast
      ? 'The text ends here.'
      : `The next character is ${nameAt(position + 1)}: ${formatNumber(surprisal[position])} bits of surprisal.`;
    this.note.textContent = `After ${positionName(position)}, the model predicts ${name} (${formatPercent(probability)}). ${next}`;
  },
});
