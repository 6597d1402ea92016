// One query of one head with its real numbers, from q to what is written, each step checked against the model's own.

/** Returns the numbers of one place: a vector of the head from `page.detail`. */
function vectorOf(what, place) {
  const D = page.positions.head_size;
  const start = ((state.layer * H + state.head) * T + place) * D;
  return page.detail[what].subarray(start, start + D);
}

/** Computes the selected query again from q, k, v and W_O. */
function workOut() {
  const D = page.positions.head_size,
    C = page.positions.width,
    query = state.query;
  const q = vectorOf('q', query);
  const raw = Array.from({ length: T }, (_, key) =>
    vectorOf('k', key).reduce((sum, number, i) => sum + number * q[i], 0),
  );
  const scaled = raw.map(score => score / Math.sqrt(D));
  const most = Math.max(...scaled.slice(0, query + 1));
  const powers = scaled.map((score, key) => (key > query ? 0 : Math.exp(score - most)));
  const sum = powers.reduce((a, b) => a + b);
  const weights = powers.map(power => power / sum);
  const found = Array.from({ length: D }, (_, i) =>
    weights.reduce((all, weight, key) => all + weight * vectorOf('v', key)[i], 0),
  );
  const start = (state.layer * H + state.head) * D * C;
  const written = Array.from({ length: C }, (_, c) =>
    found.reduce((all, number, d) => all + number * page.detail.outputs[start + d * C + c], 0),
  );
  return { q, raw, scaled, weights, found, written, most, sum };
}

const length = vector => Math.sqrt(vector.reduce((sum, number) => sum + number * number, 0));
const checked = (isRight, words) =>
  make('li', { class: isRight ? 'right' : 'wrong', text: `${isRight ? '✓' : '✗'} ${words}` });

views.push({
  name: 'worked',
  title: 'Worked example',
  build(panel) {
    if (!page.detail)
      return panel.append(missing('The numbers behind one query, q, k, v and W_O, appear with', '--detail'));
    this.body = make('div');
    panel.append(this.body);
    return undefined;
  },
  draw() {
    if (!page.detail) return;
    const work = workOut(),
      key = currentKey(),
      query = state.query,
      D = page.positions.head_size;
    const k = vectorOf('k', key),
      v = vectorOf('v', key);
    const numbers = (name, vector, formula) => [
      `${name}${formula ? ` = ${formula}` : ''}`,
      ...Array.from(vector, short),
    ];
    const vectors = table(
      `The ${D} numbers of the head, for the query ${query} ${spoken(query)} and the key ${key} ${spoken(key)}`,
      ['', ...Array.from({ length: D }, (_, i) => String(i))],
      [
        numbers(`q of ${query}`, work.q),
        numbers(`k of ${key}`, k),
        numbers(
          'q × k',
          Array.from(work.q, (number, i) => number * k[i]),
        ),
        numbers(`v of ${key}`, v),
        numbers(
          'a × v',
          Array.from(v, number => number * work.weights[key]),
        ),
        numbers('sum of a × v over all keys', work.found),
      ],
    );
    const keys = table(
      'All keys of the query',
      ['key', 'q·k', `/ √${D}`, 'mask', 'softmax', '|a·v|'],
      work.raw.map((raw, place) =>
        place > query
          ? [`${place} ${sign(place)}`, short(raw), short(work.scaled[place]), '−∞', '0', '0']
          : [
              `${place} ${sign(place)}`,
              short(raw),
              short(work.scaled[place]),
              short(work.scaled[place]),
              work.weights[place].toFixed(3),
              short(work.weights[place] * length(vectorOf('v', place))),
            ],
      ),
    );
    keys.querySelectorAll('tbody tr').forEach((row, place) => {
      row.classList.toggle('masked', place > query);
      row.classList.toggle('selected', place === key);
    });
    const stored = weightsOf(state.layer, state.head, query);
    const off = Math.max(...stored.map((weight, place) => Math.abs(weight - work.weights[place])));
    const top = [...work.written.keys()]
      .sort((a, b) => Math.abs(work.written[b]) - Math.abs(work.written[a]))
      .slice(0, 8);
    const largest = top.map(c => `${signed(work.written[c])} at ${c}`);
    this.body.replaceChildren(
      make('p', {
        class: 'how',
        text:
          `${headName(state.layer, state.head)}, query ${query} ${spoken(query)}. Choose another key ` +
          'with Shift + ← →.',
      }),
      make(
        'ol',
        { class: 'steps' },
        make('li', {
          text: `Multiply q of the query by k of the key, number by number; add up: q·k = ${short(work.raw[key])}.`,
        }),
        make('li', {
          text:
            `Divide by √${D} = ${short(Math.sqrt(D))}, so that long vectors do not make the softmax too ` +
            `sure: ${short(work.scaled[key])}.`,
        }),
        make('li', { text: `Mask: the ${T - 1 - query} keys after the query become −∞.` }),
        make('li', {
          text:
            `Softmax: e to the score, less the greatest one (${short(work.most)}), over the sum of all ` +
            `such (${short(work.sum)}): a = ${work.weights[key].toFixed(3)}.`,
        }),
        make('li', { text: 'Multiply v of each key by its a, and add up over all keys: what the head found.' }),
        make('li', {
          text:
            `Multiply by this head's part of W_O: ${work.written.length} numbers that are added to the stream, of ` +
            `length ${short(length(work.written))}; the largest are ${largest.join(', ')}. What all heads write is ` +
            'added up.',
        }),
      ),
      make(
        'ul',
        { class: 'checks' },
        checked(Math.abs(work.weights.reduce((a, b) => a + b) - 1) < 1e-6, 'the weights add up to 1'),
        checked(
          work.weights.slice(query + 1).every(weight => weight === 0),
          'the future has exactly 0',
        ),
        checked(off < 0.006, 'the weights are those of the model, to the precision of this page'),
      ),
      scroller('Numbers of query and key', vectors),
      scroller('All keys', keys),
    );
  },
});
