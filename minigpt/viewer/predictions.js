// What comes next: the model's guess at each character, and what each layer would guess if it were the last.

const layersOfLens = () => page.predictions.permille.shape[0];

/** Returns the guesses after `place` by the stream before layer `row` (the last row: the model's): sign, name, share. */
function guesses(row, place) {
  const [, , top] = page.predictions.permille.shape;
  return Array.from({ length: top }, (_, i) => {
    const at = (row * T + place) * top + i;
    const [shown, name] = page.symbols[page.predictions.symbols[at]];
    return [shown, name, page.predictions.permille[at] / 1000];
  });
}

const percent = share => (share < 0.001 ? '<0.1%' : `${(share * 100).toFixed(share < 0.1 ? 1 : 0)}%`);

views.push({
  name: 'next',
  title: 'Next character',
  build(panel) {
    const { surprisal: surprise } = page.predictions;
    const most = Math.max(...surprise, 1);
    this.strip = textStrip('The text, shaded by surprise; the selected character is the query', cells => {
      cells.forEach((cell, place) => {
        const colour = place === 0 ? null : ramp(surprise[place - 1] / most);
        cell.style.background = colour ? css(colour) : '';
        cell.style.color = colour ? inkOn(colour) : '';
        cell.classList.toggle('query', place === state.query);
      });
    });
    this.note = make('p', { class: 'note', 'aria-live': 'polite' });
    const rows = layersOfLens();
    const [, , top] = page.predictions.permille.shape;
    this.cells = Array.from({ length: rows }, () => Array.from({ length: top + 2 }, () => make('span')));
    const names = Array.from({ length: rows }, (_, row) =>
      row === 0 ? 'embedding' : row === rows - 1 ? 'after the last layer: the model' : `after layer ${row - 1}`,
    );
    names.forEach((name, row) => {
      this.cells[row][0].textContent = name;
    });
    const headings = ['read from the stream', ...Array.from({ length: top }, (_, i) => `guess ${i + 1}`), 'what came'];
    panel.append(
      make('p', {
        class: 'how',
        text:
          'The stronger the colour, the more a character surprised the model. Below: what it expects ' +
          'after the selected one, and what it would, were each layer the last (logit lens).',
      }),
      make('div', { class: 'controls' }, legend('0 bits', `${short(most)} bits`)),
      this.strip.strip,
      this.note,
      scroller('Guesses at the next character', table('Guesses at the next character', headings, this.cells)),
    );
  },
  draw() {
    this.strip.draw();
    const place = state.query;
    for (let row = 0; row < layersOfLens(); row++) {
      guesses(row, place).forEach(([shown, , share], i) => {
        const cell = this.cells[row][i + 1];
        cell.replaceChildren(make('span', { class: 'sign', dir: 'ltr', text: shown }), ` ${percent(share)}`);
        const colour = ramp(share);
        cell.style.backgroundColor = css(colour);
        cell.style.color = inkOn(colour);
      });
      const came = place + 1 < T ? percent(page.predictions.actual[row * (T - 1) + place] / 1000) : '–';
      this.cells[row].at(-1).textContent = came;
    }
    const bits = page.predictions.surprisal[place];
    const [, name, share] = guesses(layersOfLens() - 1, place)[0];
    this.note.textContent =
      `After ${place} ${spoken(place)} the model expects ${name} (${percent(share)}). ` +
      (place + 1 < T ? `What came is ${spoken(place + 1)}: ${short(bits)} bits of surprise.` : 'The text ends here.');
  },
});
