// The text itself: point at a character, and the characters before it are shaded by how much it looks at them.

// What the text is shaded by is chosen beside it: every other view reads one head, character by character.
const inText = () => state.view === 'text';
const modeNow = () => (inText() ? state.mode : 'one');
const groupNow = () => (inText() ? state.group : 'character');
const isWritten = () => inText() && state.written && state.mode !== 'rollout';
const isByCharacter = () => groupNow() === 'character';
const isOneHead = () => modeNow() === 'one' || modeNow() === 'several';

/** Returns what the selected query looks at, in the selected mode: a share for each key up to it. */
function selectedRow(query = state.query) {
  if (modeNow() === 'rollout') return rollout(state.layer, query);
  const of = isWritten() ? writtenOf : weightsOf;
  if (isOneHead()) return of(state.layer, state.head, query);
  const rows = [];
  for (let layer = 0; layer < L; layer++) {
    if (state.scope === 'layer' && layer !== state.layer) continue;
    for (let head = 0; head < H; head++) rows.push(of(layer, head, query));
  }
  const join =
    state.mode === 'max' ? values => Math.max(...values) : values => values.reduce((a, b) => a + b) / values.length;
  return rows[0].map((weight, key) => join(rows.map(row => row[key])));
}

/** Whether the shares of keys are exact to two decimals; a mean, a product or a share of levels is not. */
const isRowExact = () => !isWritten() && (isOneHead() || modeNow() === 'max');
const isExact = () => isRowExact() && isByCharacter();

/** Returns the first and the last place of what is shaded as one with `place`. */
function groupOf(place) {
  if (isByCharacter()) return [place, place];
  const starts = groupNow() === 'word' ? page.text.words : page.text.lines;
  let at = 0;
  while (at + 1 < starts.length && starts[at + 1] <= place) at++;
  return [starts[at], (starts[at + 1] ?? T) - 1];
}

/**
 * Returns the share of each key: of a word or line, the mean over its queries of the sum over the key's characters.
 * `rowOf` gives the shares of one query; without it, those of the selected mode.
 */
function groupedRow(rowOf = selectedRow) {
  if (isByCharacter()) return rowOf(state.query);
  const [first, last] = groupOf(state.query);
  const row = new Float32Array(last + 1);
  for (let query = first; query <= last; query++) {
    rowOf(query).forEach((weight, key) => {
      row[key] += weight / (last - first + 1);
    });
  }
  for (let key = 0; key <= last;) {
    const end = Math.min(groupOf(key)[1], last);
    const sum = row.subarray(key, end + 1).reduce((a, b) => a + b, 0);
    row.fill(sum, key, end + 1);
    key = end + 1;
  }
  return row;
}

/** The key that numbers are read of: the one chosen, else the strongest. */
const currentKey = () => state.key ?? strongestIn(groupedRow());

/** Returns the strongest key in a row: of one head's own weights, character by character, the one that Python found. */
function strongestIn(row, head = state.head, isGrouped = !isByCharacter()) {
  const isPlain = !isGrouped && isOneHead() && !isWritten();
  return isPlain ? strongestOf(state.layer, head, state.query) : greatest(row);
}

const groupSpoken = place => {
  const [first, last] = groupOf(place);
  if (first === last) return spoken(first);
  // Isolated, so that letters from right to left turn no number after them.
  return `\u2068${Array.from({ length: last - first + 1 }, (_, i) => sign(first + i)).join('')}\u2069`;
};

/** Returns what is read aloud: "query 17 e, strongest key 16 h, 0.43". */
function reading() {
  const row = groupedRow();
  const best = strongestIn(row);
  const about = isExact() ? '' : 'about ';
  const place = key => (isByCharacter() ? `${key} ${spoken(key)}` : `${groupNow()} ${groupSpoken(key)}`);
  const chosen =
    state.key === null || state.key === best ? '' : `; key ${place(state.key)}, ${about}${two(row[state.key])}`;
  return `query ${place(state.query)}, strongest key ${place(best)}, ${about}${two(row[best])}${chosen}`;
}

/** Makes the text as a list of characters of which one is the query: one stop of the Tab key. */
function textStrip(label, shade) {
  const strip = make('div', { class: 'strip', role: 'listbox', 'aria-label': label, 'aria-orientation': 'horizontal' });
  const cells = [];
  for (let place = 0; place < T; place++) {
    const cell = signOf(place);
    cell.setAttribute('role', 'option');
    cell.setAttribute('tabindex', -1);
    cell.setAttribute('aria-label', `${place} ${spoken(place)}`);
    cell.dataset.place = place;
    cells.push(cell);
    strip.append(cell);
    if (spoken(place) === 'newline') strip.append(make('br'));
    else if (isUnseen(place)) strip.append(make('wbr'));
  }
  const placeOf = event => (event.target.dataset.place === undefined ? null : Number(event.target.dataset.place));
  strip.addEventListener('mouseover', event => {
    const place = placeOf(event);
    if (!hasMoved(event) || place === null) return;
    if (!state.pinned && place !== state.query) change({ query: place });
    else if (state.pinned && place <= state.query && place !== state.key) change({ key: place });
  });
  strip.addEventListener('click', event => {
    const place = placeOf(event);
    if (place !== null) change({ query: place, pinned: !(state.pinned && place === state.query) });
  });
  let at = 0;
  function draw() {
    const focused = strip.contains(document.activeElement);
    cells[at].setAttribute('tabindex', -1);
    cells[at].removeAttribute('aria-selected');
    at = state.query;
    cells[at].setAttribute('tabindex', 0);
    cells[at].setAttribute('aria-selected', 'true');
    if (focused) cells[at].focus({ preventScroll: true });
    shade(cells, strip);
  }
  return { strip, draw };
}

function shadeByAttention(cells, strip) {
  const row = groupedRow();
  const several = modeNow() === 'several';
  const [first, last] = groupOf(state.query);
  const key = currentKey();
  const [keyFirst, keyLast] = groupOf(key);
  const of = isWritten() ? writtenOf : weightsOf;
  const rows = several
    ? state.several.map(head => [head, ofItsGreatest(groupedRow(query => of(state.layer, head, query)))])
    : [];
  strip.classList.toggle('striped', several);
  strip.style.setProperty('--stripes', String(rows.length));
  cells.forEach((cell, place) => {
    const isPast = place < row.length;
    cell.classList.toggle('query', place >= first && place <= last);
    cell.classList.toggle('key', isPast && place >= keyFirst && place <= keyLast && !several);
    cell.classList.toggle('future', !isPast);
    const colour = isPast && !several ? ramp(depthOf(Math.min(row[place], 1))) : null;
    cell.style.background = colour ? css(colour) : several && isPast ? stripes(rows, place) : '';
    cell.style.color = colour ? inkOn(colour) : '';
    const best = rows.filter(([head, row]) => strongestIn(row, head) === place).map(([head]) => head);
    if (best.length) cell.dataset.heads = best.join(',');
    else delete cell.dataset.heads;
  });
}

/** Returns shares of the greatest, so that the stripes of a head that looks at many places can be seen as well. */
const ofItsGreatest = row => row.map(weight => weight / row[greatest(row)]);

/** Returns one stripe below the character for each head, in its colour, the fuller the more it looks there. */
function stripes(rows, place) {
  return rows
    .map(([head, row], i) => {
      const colour =
        headColour(head) +
        Math.round(depthOf(row[place]) * 255)
          .toString(16)
          .padStart(2, '0');
      return `linear-gradient(${colour}, ${colour}) 0 calc(100% - ${(rows.length - 1 - i) * 6}px) / 100% 5px no-repeat`;
    })
    .join(', ');
}

let mainStrip;

views.push({
  name: 'text',
  title: 'Text',
  build(panel) {
    mainStrip = textStrip('The text; the selected character is the query', shadeByAttention);
    const headBoxes = make(
      'fieldset',
      { class: 'heads-shown' },
      make('legend', {
        text: 'Heads of this layer, a stripe each, as shares of its strongest key; a small number marks that key',
      }),
    );
    for (let head = 0; head < H; head++) {
      const box = make('input', { type: 'checkbox', onchange: () => toggleHead(head) });
      const chip = make('span', { class: 'chip' });
      chip.style.backgroundColor = headColour(head);
      followers.push(() => {
        box.checked = state.several.includes(head);
      });
      headBoxes.append(make('label', { class: 'tick' }, box, chip, make('span', { text: `head ${head}` })));
    }
    const scope = choice(
      'over',
      [
        ['layer', 'this layer'],
        ['all', 'all layers'],
      ],
      'scope',
    );
    const written = tick('weigh by what is written, |a·v·W_O|', 'written');
    followers.push(() => {
      written.hidden = state.mode === 'rollout';
      headBoxes.hidden = state.mode !== 'several';
      scope.hidden = state.mode !== 'mean' && state.mode !== 'max';
    });
    panel.append(
      make('p', {
        class: 'how',
        text:
          'Point at a character, or choose one and move with ← →: the stronger the colour of an earlier character, ' +
          'the more this head looks at it.',
      }),
      mainStrip.strip,
      make(
        'div',
        { class: 'controls' },
        legend('0', '1 (square-root shading)'),
        choice(
          'Show',
          [
            ['one', 'one head'],
            ['several', 'several heads'],
            ['mean', 'mean of heads'],
            ['max', 'maximum of heads'],
            ...(hasAllBelow ? [['rollout', 'rollout up to this layer']] : []),
          ],
          'mode',
        ),
        scope,
        choice(
          'Shade',
          [
            ['character', 'characters'],
            ['word', 'words'],
            ['line', 'lines'],
          ],
          'group',
        ),
        written,
      ),
      headBoxes,
    );
  },
  draw() {
    mainStrip.draw();
  },
});

function toggleHead(head) {
  if (head >= H) return;
  const several = state.several.includes(head)
    ? state.several.filter(other => other !== head)
    : [...state.several, head].sort((a, b) => a - b);
  change({ view: 'text', several, mode: 'several' });
}
