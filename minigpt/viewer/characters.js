// What characters are to each other: by their embeddings, and by the circuits of the selected head.

state.circuit = 'qk';
state.of = 0;
state.with = 0;

/** Returns the table chosen, as a function of row and column. */
function circuit() {
  const { symbols: signs, cosine } = page.characters;
  const n = signs.length;
  if (state.circuit === 'cosine') return (row, column) => cosine[row * n + column];
  const start = (state.layer * H + state.head) * n * n;
  return (row, column) => page.characters[state.circuit][start + row * n + column];
}

/** Returns the columns with the greatest numbers of a row, found by Python: here they are rounded to few steps. */
function greatestOf(row) {
  const found = page.characters.top[state.circuit];
  const [, n, count] = found.shape;
  const start = ((state.circuit === 'cosine' ? 0 : state.layer * H + state.head) * n + row) * count;
  return Array.from(found.subarray(start, start + count));
}

const MEANING = {
  cosine: 'How alike the embeddings of two characters are: the cosine of the angle between them.',
  qk: 'Who looks for whom. A row is the character that looks (query), a column the one that is found (key).',
  ov: 'What looking does. A row is the character looked at, a column one whose logit rises or falls by it.',
};

const LEFT_OUT = {
  rotary: 'QK is taken at a relative distance of 1, which rotary positions need; ',
  learned: 'QK leaves out what the learned positions add; ',
  sinusoidal: 'QK leaves out what the positions add; ',
  none: '',
};

views.push({
  name: 'characters',
  title: 'Characters',
  build(panel) {
    const { symbols: signs } = page.characters;
    const names = signs.map((number, place) => [place, page.symbols[number][1]]);
    state.of = Math.max(0, signs.indexOf(page.text.symbols[state.query]));
    state.with = Math.max(0, signs.indexOf(page.text.symbols[currentKey()]));
    this.how = make('p', { class: 'how' });
    this.note = make('p', { class: 'note', 'aria-live': 'polite' });
    this.best = make('p', {});
    this.heat = heatmap((row, column, isClick) => {
      if (isClick) change({ of: row, with: column });
    });
    const cut =
      signs.length < page.characters.vocab_size
        ? `${signs.length} of ${page.characters.vocab_size} characters, those most frequent in the text among them. `
        : '';
    panel.append(
      this.how,
      make(
        'div',
        { class: 'controls' },
        choice(
          'Table',
          [
            ['cosine', 'embeddings (cosine)'],
            ['qk', 'QK of the head: who looks for whom'],
            ['ov', 'OV of the head: what looking does'],
          ],
          'circuit',
        ),
        choice('Row', names, 'of'),
        choice('Column', names, 'with'),
        legend('least', 'greatest'),
      ),
      this.note,
      this.best,
      this.heat.canvas,
      make('p', {
        class: 'fine',
        text:
          `${cut}QK and OV are computed as if the stream held only the character's embedding, which for layers ` +
          `after 0 is not so, and OV without what later layers make of it. ${LEFT_OUT[page.positions.kind]}OV divides ` +
          'by the last norm as it is in the mean over the text, and each row has a mean of 0.',
      }),
    );
  },
  sentence(value, row, column) {
    const [a, b] = [row, column].map(place => page.symbols[page.characters.symbols[place]][1]);
    const of = headName(state.layer, state.head);
    if (state.circuit === 'cosine')
      return `The embeddings of ${a} and ${b} have a cosine of about ${value.toFixed(2)}.`;
    const about = value.toPrecision(2).replace('-', '−');
    // Only the first layer reads embeddings; what later ones read has been written over.
    const [bare, gives, rises] =
      layerName(state.layer) === 0
        ? ['', 'gives', value < 0 ? 'falls directly' : 'rises directly']
        : ['If the stream held embeddings alone: ', 'would give', `would ${value < 0 ? 'fall' : 'rise'} directly`];
    if (state.circuit === 'qk')
      return `${bare}in ${of}, ${a} looking for ${b} ${gives} a score of about ${about} before the softmax.`;
    return `${bare}where ${of} looks at ${a} fully, the logit of ${b} ${rises} by about ${about.replace('−', '')}.`;
  },
  draw() {
    const value = circuit();
    const n = page.characters.symbols.length;
    const row = Array.from({ length: n }, (_, column) => value(state.of, column));
    const name = `${state.circuit} ${state.circuit === 'cosine' ? '' : `${state.layer} ${state.head}`}`;
    if (this.drawn !== name) {
      let [low, high] = [Infinity, -Infinity];
      for (let i = 0; i < n * n; i++) {
        const found = value(Math.floor(i / n), i % n);
        if (state.circuit === 'cosine' && i % (n + 1) === 0) continue;
        low = Math.min(low, found);
        high = Math.max(high, found);
      }
      Object.assign(this, { drawn: name, low, high });
    }
    const signAt = place => page.symbols[page.characters.symbols[place]][0];
    this.heat.draw({
      name,
      rows: n,
      columns: n,
      width: 860,
      rowSign: signAt,
      columnSign: signAt,
      cross: [state.of, state.with],
      colour: (r, c) => ramp((value(r, c) - this.low) / (this.high - this.low || 1)),
    });
    const [, asked] = page.symbols[page.characters.symbols[state.of]];
    this.how.textContent = MEANING[state.circuit];
    this.note.textContent = this.sentence(row[state.with], state.of, state.with);
    const named = greatestOf(state.of).map(
      place => `${page.symbols[page.characters.symbols[place]][1]} ${row[place].toPrecision(2)}`,
    );
    this.best.textContent = `Greatest in the row of ${asked}, about: ${named.join(', ')}.`;
    this.heat.canvas.setAttribute('aria-label', `${MEANING[state.circuit]} ${this.best.textContent}`);
  },
});
