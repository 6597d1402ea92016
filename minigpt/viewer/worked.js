// One query of one head with its real numbers, from q to what is written, held against what the model itself had.

/** Returns the numbers of one place: a vector of the head from `page.detail`. */
function vectorOf(what, place) {
  const D = page.positions.head_size;
  const start = ((state.layer * H + state.head) * T + place) * D;
  return page.detail[what].subarray(start, start + D);
}

/** Computes the selected query again from q, k, v and W_O. */
function workOut() {
  const D = page.positions.head_size,
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
  return { q, raw, scaled, weights, found, written: writtenBy(found), most, sum };
}

/** Multiplies a vector of the head by its part of W_O. */
function writtenBy(vector) {
  const { head_size: D, width: C } = page.positions;
  const start = (state.layer * H + state.head) * D * C;
  return Array.from({ length: C }, (_, c) =>
    vector.reduce((all, number, d) => all + number * page.detail.output_weights[start + d * C + c], 0),
  );
}

/** Returns how far scores, weights and what the key's v writes lie from the model's own, as shares of the largest. */
function distances(work, key) {
  const { layer, head, query } = state;
  const first = (layer * H + head) * T;
  const table = page.stages.raw.subarray(first * T, (first + T) * T); // of all tokens, for there are 64 at most
  const lengths = page.attention.output_norms.subarray(first, first + T);
  const gap = (ours, theirs) => Math.max(...ours.map((number, place) => Math.abs(number - theirs[place])));
  const scores = table.subarray(query * T, (query + 1) * T);
  return {
    scores: gap(work.raw, scores) / Math.max(...table.map(Math.abs), 1e-9),
    weights: gap(work.weights.slice(0, query + 1), weightsOf(layer, head, query)),
    written: Math.abs(length(writtenBy(vectorOf('v', key))) - lengths[key]) / Math.max(...lengths, 1e-9),
  };
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
    this.steps = make('div');
    this.vectors = scroller('Numbers of query and key');
    this.keys = scroller('All keys');
    panel.append(this.steps, this.vectors, this.keys);
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
    const off = distances(work, key);
    const top = [...work.written.keys()]
      .sort((a, b) => Math.abs(work.written[b]) - Math.abs(work.written[a]))
      .slice(0, 8);
    const largest = top.map(c => `${signed(work.written[c])} at ${c}`);
    this.steps.replaceChildren(
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
        checked(off.scores < 0.001, 'the scores q·k are those of the model'),
        checked(off.weights < 0.006, 'the weights are those of the model, to the two decimals of this page'),
        checked(off.written < 0.002, 'v of the key through W_O is as long as in the model'),
      ),
    );
    this.vectors.replaceChildren(vectors);
    this.keys.replaceChildren(keys);
  },
});
