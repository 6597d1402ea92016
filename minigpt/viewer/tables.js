// Numbers as tables: the strongest keys of the query, all scores of all heads, and what is lost without each head.

const STRONGEST = 10;

/** Makes the table that says in numbers what the picture shades. */
function strongestKeys() {
  const rows = Array.from({ length: STRONGEST }, () => ['', '', ''].map(text => document.createTextNode(text)));
  const made = table('Strongest keys of the query', ['place', 'character', 'weight'], rows);
  const caption = made.querySelector('caption');
  followers.push(() => {
    const row = selectedRow();
    const best = strongestIn(row, state.head, false);
    const order = Array.from(row.keys())
      .sort((a, b) => row[b] - row[a] || (b === best) - (a === best) || b - a)
      .slice(0, STRONGEST);
    order.sort((a, b) => (b === best) - (a === best));
    const about = isRowExact() ? '' : 'about ';
    rows.forEach((cells, i) => {
      const key = order[i];
      cells[0].parentElement.parentElement.hidden = key === undefined;
      if (key === undefined) return;
      [String(key), sign(key), about + two(row[key])].forEach((text, column) => {
        cells[column].data = text;
      });
    });
    caption.textContent = `Strongest keys of ${state.query} ${spoken(state.query)}, ${rowName()}`;
  });
  return made;
}

/** Says what the selected row is a row of. */
function rowName() {
  if (modeNow() === 'rollout') return `rollout up to layer ${layerName(state.layer)}`;
  const scope = state.scope === 'layer' ? `layer ${layerName(state.layer)}` : 'all layers';
  const of = isOneHead() ? headName(state.layer, state.head) : `${modeNow()} over ${scope}`;
  return of + (isWritten() ? ', share of what is written' : '');
}

/** Returns all scores as lines of comma-separated values, with the baselines as the first line below the names. */
function scoresAsCsv() {
  const names = Object.keys(page.scores.values);
  const quoted = name => (name.includes(',') ? `"${name}"` : name);
  const lines = [
    ['layer', 'head', 'kind', ...names.map(quoted)],
    ['', '', 'uniform', ...names.map(name => page.scores.uniform[name] ?? '')],
  ];
  for (let layer = 0; layer < L; layer++) {
    for (let head = 0; head < H; head++) {
      const values = names.map(name => page.scores.values[name][layer][head] ?? '');
      lines.push([layerName(layer), head, page.scores.kinds[layer][head], ...values]);
    }
  }
  return lines.map(line => line.join(',')).join('\n') + '\n';
}

const isShare = name => page.scores.patterns.includes(name) || name === 'top';

/** Writes a score with how many times the baseline of a head that looks everywhere alike it is. */
function scoreWords(name, layer, head) {
  const value = page.scores.values[name][layer][head],
    uniform = page.scores.uniform[name];
  if (value === null) return '–';
  const lift = uniform ? ` (${(value / uniform).toPrecision(2).replace('e+', 'e')}×)` : '';
  return (isShare(name) ? value.toFixed(3) : short(value)) + lift;
}

views.push({
  name: 'heads',
  title: 'Heads',
  build(panel) {
    const names = Object.keys(page.scores.values);
    const output = make('textarea', {
      rows: 6,
      readonly: true,
      'aria-label': 'Scores as comma-separated values',
      hidden: true,
    });
    const said = make('span', { role: 'status' });
    const copy = make('button', {
      type: 'button',
      text: 'Copy as CSV',
      onclick: async () => {
        output.value = scoresAsCsv();
        try {
          await navigator.clipboard.writeText(output.value);
          said.textContent = 'Copied.';
        } catch {
          output.hidden = false;
          output.select();
          said.textContent = 'Copy it from here:';
        }
      },
    });
    const rows = [];
    this.heads = [];
    for (let layer = 0; layer < L; layer++) {
      for (let head = 0; head < H; head++) {
        const button = make('button', {
          type: 'button',
          class: 'link',
          text: `${layerName(layer)}.${head}`,
          onclick: () => change({ layer, head }),
        });
        this.heads.push([layer, head, button]);
        rows.push([button, WORDS[page.scores.kinds[layer][head]], ...names.map(name => scoreWords(name, layer, head))]);
      }
    }
    const baseline = [
      'uniform',
      'looks everywhere alike',
      ...names.map(name => (page.scores.uniform[name] === null ? '–' : short(page.scores.uniform[name]))),
    ];
    const made = table(
      'Scores of each head, and in brackets how many times the uniform baseline',
      ['head', 'kind', ...names],
      [baseline, ...rows],
    );
    const about = make('dl', { class: 'about' });
    for (const name of names)
      about.append(make('div', {}, make('dt', { text: name }), make('dd', { text: page.scores.descriptions[name] })));
    panel.append(
      make('p', {
        class: 'how',
        text:
          'What each head looks at, as shares of its attention, in the mean over the queries that have such a place ' +
          'before them. The first row is what a head gets that looks everywhere alike.',
      }),
      make('p', {}, copy, ' ', said),
      output,
      scroller('Scores of each head', made),
      make('details', {}, make('summary', { text: 'What the columns mean' }), about),
    );
    if (page.scores.divergence) this.buildDivergence(panel);
  },
  buildDivergence(panel) {
    const n = L * H;
    const name = place => headName(Math.floor(place / H), place % H);
    this.note = make('p', { class: 'note' });
    this.differences = make('p', { 'aria-live': 'polite' });
    this.heat = heatmap((row, column) => {
      this.note.textContent =
        `${name(row)} and ${name(column)}: ${short(page.scores.divergence[row * n + column])} (0 the ` +
        'same, 1 nothing in common)';
    });
    panel.append(make('h2', { text: 'How differently two heads look' }), this.differences, this.note, this.heat.canvas);
    this.heat.canvas.setAttribute(
      'aria-label',
      'Jensen-Shannon divergence between all pairs of heads, dark where two differ',
    );
  },
  draw() {
    for (const [layer, head, button] of this.heads) {
      button.closest('tr').classList.toggle('selected', layer === state.layer && head === state.head);
    }
    if (!this.heat) return;
    const n = L * H,
      selected = state.layer * H + state.head;
    const far = Array.from({ length: n }, (_, other) => page.scores.divergence[selected * n + other]);
    const others = Array.from(far.keys())
      .filter(other => other !== selected)
      .sort((a, b) => far[a] - far[b]);
    const told = other => `${headName(Math.floor(other / H), other % H)} (${short(far[other])})`;
    this.differences.textContent = others.length
      ? `${headName(state.layer, state.head)} looks most like ${told(others[0])} and least like ` +
        `${told(others.at(-1))}; 0 is the same, 1 nothing in common. Point at a cell to compare any two.`
      : 'There is no other head to compare it with.';
    this.heat.draw({
      name: 'divergence',
      rows: n,
      columns: n,
      width: 400,
      colour: (row, column) => ramp(page.scores.divergence[row * n + column]),
    });
  },
});

views.push({
  name: 'ablation',
  title: 'Ablation',
  build(panel) {
    if (!page.ablation)
      return panel.append(missing('What the loss does when a head is silenced appears with', '--ablate'));
    const { loss, increases: rises, tokens } = page.ablation;
    const most = Math.max(...rises.flat().map(Math.abs), 1e-9);
    this.cells = [];
    const rows = rises.map((row, layer) => [
      `layer ${layerName(layer)}`,
      ...row.map((rise, head) => {
        const button = make('button', {
          type: 'button',
          class: 'link',
          text: signed(rise),
          onclick: () => change({ layer, head }),
        });
        this.cells.push([button, rise / most]);
        return button;
      }),
    ]);
    const idle = rises.flat().filter(rise => rise <= 0.001).length;
    panel.append(
      make('p', {
        class: 'how',
        text:
          `How much the loss rises, in nats, when one head writes nothing. With all heads it is ${loss} ` +
          `over the first ${tokens.toLocaleString('en')} tokens of the validation split.`,
      }),
      make('p', { text: `${idle} of ${L * H} heads can each be silenced at a cost of 0.001 nats or less.` }),
      scroller(
        'Loss without each head',
        table(
          'Rise of the loss without the head',
          ['', ...Array.from({ length: H }, (_, head) => `head ${head}`)],
          rows,
        ),
      ),
    );
    return undefined;
  },
  draw() {
    for (const [button, share] of this.cells ?? []) {
      const colour = ramp(Math.max(0, share));
      button.style.backgroundColor = css(colour);
      button.style.color = inkOn(colour);
    }
  },
});
