// The worked example: one query of one head, with all numbers checked against the model's own.

/** Return q, k or v of one position of the selected head. */
function vectorOf(name, position) {
  const D = page.positions.head_size;
  const start = ((state.layer * H + state.head) * T + position) * D;
  return page.detail[name].subarray(start, start + D);
}

/** Compute the output of the selected query from q, k, v and W_O. */
function computeHead() {
  const D = page.positions.head_size,
    query = state.query;
  const q = vectorOf('q', query);
  const raw = range(T, key => vectorOf('k', key).reduce((sum, number, i) => sum + number * q[i], 0));
  const scaled = raw.map(score => score / Math.sqrt(D));
  const max = Math.max(...scaled.slice(0, query + 1));
  const powers = scaled.map((score, key) => (key > query ? 0 : Math.exp(score - max)));
  const sum = powers.reduce((a, b) => a + b);
  const weights = powers.map(power => power / sum);
  const mixed = range(D, i => weights.reduce((total, weight, key) => total + weight * vectorOf('v', key)[i], 0));
  return { q, raw, scaled, weights, mixed, output: project(mixed), max, sum };
}

/** Multiply a vector of the head by the head's rows of W_O. */
function project(vector) {
  const { head_size: D, width: C } = page.positions;
  const start = (state.layer * H + state.head) * D * C;
  const weights = page.detail.output_weights;
  return range(C, c => vector.reduce((sum, number, d) => sum + number * weights[start + d * C + c], 0));
}

/** Return the largest differences from the model's own scores, weights and output norm, relative to the largest. */
function errorsOf(work, key) {
  const { layer, head, query } = state;
  const first = (layer * H + head) * T;
  const scores = page.stages.raw.subarray(first * T, (first + T) * T); // all tokens, because this view has at most 64
  const norms = page.attention.output_norms.subarray(first, first + T);
  const difference = (ours, theirs) => Math.max(...ours.map((number, i) => Math.abs(number - theirs[i])));
  return {
    scores: difference(work.raw, scores.subarray(query * T)) / Math.max(...scores.map(Math.abs), 1e-9),
    weights: difference(work.weights.slice(0, query + 1), weightsOf(layer, head, query)),
    norm: Math.abs(norm(project(vectorOf('v', key))) - norms[key]) / Math.max(...norms, 1e-9),
  };
}

const norm = vector => Math.sqrt(vector.reduce((sum, number) => sum + number * number, 0));

const check = (isRight, text) =>
  make('li', { class: isRight ? 'right' : 'wrong', text: `${isRight ? '✓' : '✗'} ${text}` });

views.push({
  name: 'worked',
  title: 'Worked example',
  build(panel) {
    this.steps = make('div');
    this.vectors = scrollArea('The vectors of the query and the key');
    this.keys = scrollArea('All keys');
    if (page.detail) panel.append(this.steps, this.vectors, this.keys);
    else panel.append(unavailable('a worked example', '--detail'));
  },
  draw() {
    if (!page.detail) return;
    const work = computeHead();
    const key = currentKey();
    this.steps.replaceChildren(...this.explain(work, key));
    this.vectors.replaceChildren(this.vectorTable(work, key));
    this.keys.replaceChildren(this.keyTable(work, key));
  },
  explain({ raw, scaled, max, sum, weights, output, ...work }, key) {
    const { query } = state;
    const D = page.positions.head_size;
    const largest = range(output.length)
      .sort((a, b) => Math.abs(output[b]) - Math.abs(output[a]))
      .slice(0, 8)
      .map(i => `${formatSigned(output[i])} at ${i}`);
    const steps = [
      `Score: multiply q of the query by k of the key, element by element, and sum: q·k = ${formatNumber(raw[key])}.`,
      `Scale: divide by √${D} = ${formatNumber(Math.sqrt(D))}, so that the softmax does not saturate: ` +
        `${formatNumber(scaled[key])}.`,
      `Mask: set the scores of the ${T - 1 - query} keys after the query to −∞.`,
      `Softmax: subtract the largest score (${formatNumber(max)}), take the exponential, and divide by the sum over ` +
        `all keys (${formatNumber(sum)}): a = ${weights[key].toFixed(3)}.`,
      'Mix: multiply v of each key by its weight a, and add up over all keys.',
      `Project: multiply by the head's rows of W_O. The result has ${output.length} numbers and a length of ` +
        `${formatNumber(norm(output))}; the largest are ${largest.join(', ')}. The layer adds the results of all heads ` +
        'to the residual stream.',
    ];
    const errors = errorsOf({ raw, weights, ...work }, key);
    return [
      intro(
        `${sentence(headName(state.layer, state.head))}, query ${positionName(query)}, key ${positionName(key)}. ` +
          'Select a different key with Shift + ← →.',
      ),
      make('ol', {}, ...steps.map(text => make('li', { text }))),
      make(
        'ul',
        { class: 'checks' },
        check(errors.scores < 0.001, 'The scores q·k match the model.'),
        check(errors.weights < 0.006, 'The weights match the model to two decimals.'),
        check(errors.norm < 0.002, 'The length of v·W_O matches the model.'),
      ),
    ];
  },
  vectorTable({ q, weights, mixed }, key) {
    const [k, v] = [vectorOf('k', key), vectorOf('v', key)];
    const row = (name, vector) => [name, ...Array.from(vector, formatNumber)];
    return table(
      `The vectors of query ${positionName(state.query)} and key ${positionName(key)}`,
      ['', ...range(q.length, String)],
      [
        row(`q of ${state.query}`, q),
        row(`k of ${key}`, k),
        row(
          'q × k',
          Array.from(q, (number, i) => number * k[i]),
        ),
        row(`v of ${key}`, v),
        row(
          'a × v',
          Array.from(v, number => number * weights[key]),
        ),
        row('sum of a × v over all keys', mixed),
      ],
    );
  },
  keyTable({ raw, scaled, weights }, selected) {
    const made = table(
      'All keys of the query',
      ['key', 'q·k', `/ √${page.positions.head_size}`, 'masked', 'softmax', '|a·v|'],
      range(T, key => {
        const start = [`${key} ${glyphAt(key)}`, formatNumber(raw[key]), formatNumber(scaled[key])];
        if (key > state.query) return [...start, '−∞', '0', '0'];
        const length = formatNumber(weights[key] * norm(vectorOf('v', key)));
        return [...start, formatNumber(scaled[key]), weights[key].toFixed(3), length];
      }),
    );
    [...made.tBodies[0].rows].forEach((row, key) => {
      row.classList.toggle('masked', key > state.query);
      row.classList.toggle('selected', key === selected);
    });
    return made;
  },
});
