// Relations between characters: the similarity of their embeddings, and the QK and OV circuits of the selected head.

state.relation = 'qk';
state.row = 0;
state.column = 0;

/** Return the selected table as a function of row and column. */
function relationTable() {
  const { symbols, cosine } = page.characters;
  const n = symbols.length;
  if (state.relation === 'cosine') return (row, column) => cosine[row * n + column];
  const start = (state.layer * H + state.head) * n * n;
  return (row, column) => page.characters[state.relation][start + row * n + column];
}

/** Return the columns with the largest values in a row. Python computes them, because the stored values are rounded. */
function topColumns(row) {
  const top = page.characters.top[state.relation];
  const [, n, count] = top.shape;
  const start = ((state.relation === 'cosine' ? 0 : state.layer * H + state.head) * n + row) * count;
  return Array.from(top.subarray(start, start + count));
}

const RELATIONS = {
  cosine: 'How similar the model considers two characters: the cosine similarity of their embeddings.',
  qk: 'Which characters attend to which. A row is the query, a column is the key.',
  ov: 'What attention does. A row is the attended character, a column is the character whose logit changes.',
};
const POSITION_NOTES = {
  rotary: 'With RoPE, QK assumes that the key is one position before the query. ',
  learned: 'QK ignores the learned positions. ',
  sinusoidal: 'QK ignores the sinusoidal positions. ',
  none: '',
};

views.push({
  name: 'characters',
  title: 'Characters',
  build(panel) {
    const { symbols, vocab_size: vocabSize } = page.characters;
    const names = symbols.map((symbol, i) => [i, page.symbols[symbol][1]]);
    state.row = Math.max(0, symbols.indexOf(page.text.symbols[state.query]));
    state.column = Math.max(0, symbols.indexOf(page.text.symbols[currentKey()]));
    this.intro = intro('');
    this.note = note();
    this.top = make('p', {});
    this.heat = heatmap((row, column, isClick) => {
      if (isClick) change({ row, column });
    });
    const cut =
      symbols.length < vocabSize ? `Shows the ${symbols.length} most frequent of ${vocabSize} characters. ` : '';
    const relations = {
      cosine: 'similarity of embeddings',
      qk: 'QK circuit of the head',
      ov: 'OV circuit of the head',
    };
    panel.append(
      this.intro,
      controls(
        choice('Table', 'relation', relations),
        choice('Row', 'row', names),
        choice('Column', 'column', names),
        legend('low', 'high'),
      ),
      this.note,
      this.top,
      this.heat.canvas,
      make('p', {
        class: 'small',
        text:
          `${cut}QK and OV treat the embedding as the layer's only input. This is exact only for layer 0. ` +
          `${POSITION_NOTES[page.positions.kind]}OV ignores later layers, uses the mean scale of the final norm over ` +
          'this text, and is relative to the mean of the row.',
      }),
    );
  },
  describe(value) {
    const [a, b] = [state.row, state.column].map(i => page.symbols[page.characters.symbols[i]][1]);
    const head = headName(state.layer, state.head);
    const number = value.toPrecision(2).replace('-', '−');
    if (state.relation === 'cosine')
      return `The embeddings of ${a} and ${b} have a cosine similarity of about ${number}.`;
    const prefix = layerNumber(state.layer) === 0 ? '' : 'for bare embeddings, ';
    if (state.relation === 'qk')
      return sentence(`${prefix}${head} gives query ${a} and key ${b} a score of about ${number}.`);
    const effect = `${value < 0 ? 'lowers' : 'raises'} the logit of ${b} by about ${number.replace('−', '')}`;
    return sentence(`${prefix}${head} ${effect} if it attends only to ${a}.`);
  },
  draw() {
    const value = relationTable();
    const isCosine = state.relation === 'cosine';
    const n = page.characters.symbols.length;
    const name = `${state.relation} ${isCosine ? '' : `${state.layer} ${state.head}`}`;
    if (this.drawn !== name) {
      let [low, high] = [Infinity, -Infinity];
      for (let i = 0; i < n * n; i++) {
        if (isCosine && i % (n + 1) === 0) continue; // the diagonal is 1
        const cell = value(Math.floor(i / n), i % n);
        low = Math.min(low, cell);
        high = Math.max(high, cell);
      }
      Object.assign(this, { drawn: name, low, high });
    }
    const symbol = i => page.symbols[page.characters.symbols[i]];
    const label = i => symbol(i)[0];
    this.heat.draw({
      name,
      rows: n,
      columns: n,
      width: 860,
      rowLabel: label,
      columnLabel: label,
      cross: [state.row, state.column],
      color: (row, column) => ramp((value(row, column) - this.low) / (this.high - this.low || 1)),
    });
    const top = topColumns(state.row).map(i => `${symbol(i)[1]} ${value(state.row, i).toPrecision(2)}`);
    this.intro.textContent = RELATIONS[state.relation];
    this.note.textContent = this.describe(value(state.row, state.column));
    this.top.textContent = `Largest values in the row of ${symbol(state.row)[1]} (approximate): ${top.join(', ')}.`;
    this.heat.canvas.setAttribute('aria-label', `${RELATIONS[state.relation]} ${this.top.textContent}`);
  },
});
