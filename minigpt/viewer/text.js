// The text view: point to a character to shade the earlier characters by its attention.

// The options of this view apply only to it. All other views show one head, character by character.
const isTextView = () => state.view === 'text';
const currentMode = () => (isTextView() ? state.mode : 'one');
const currentGroup = () => (isTextView() ? state.group : 'character');
const isByNorm = () => isTextView() && state.byNorm && state.mode !== 'rollout';
const isByCharacter = () => currentGroup() === 'character';
const isOneHead = () => currentMode() === 'one' || currentMode() === 'several';

/** Return the share of each key up to `query` in the selected mode. */
function selectedRow(query = state.query) {
  if (currentMode() === 'rollout') return rollout(state.layer, query);
  const sharesOf = isByNorm() ? normSharesOf : weightsOf;
  if (isOneHead()) return sharesOf(state.layer, state.head, query);
  const layers = state.scope === 'layer' ? [state.layer] : range(L);
  const rows = layers.flatMap(layer => range(H, head => sharesOf(layer, head, query)));
  const mean = values => values.reduce((a, b) => a + b) / values.length;
  const combine = state.mode === 'max' ? values => Math.max(...values) : mean;
  return rows[0].map((_, key) => combine(rows.map(row => row[key])));
}

/** Whether the shares are exact to two decimals. Means, products and sums of stored weights are not. */
const isRowExact = () => !isByNorm() && (isOneHead() || currentMode() === 'max');
const isExact = () => isRowExact() && isByCharacter();

/** Return the first and last position of the group of a position. */
function groupOf(position) {
  if (isByCharacter()) return [position, position];
  const starts = currentGroup() === 'word' ? page.text.words : page.text.lines;
  let group = 0;
  while (group + 1 < starts.length && starts[group + 1] <= position) group++;
  return [starts[group], (starts[group + 1] ?? T) - 1];
}

/**
 * Return the share of each key. For words and lines, average over the queries of the selected group, and sum over
 * the keys of each group. `rowOf(query)` gives the shares of one query.
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
    const end = Math.min(groupOf(key)[1], last) + 1;
    const sum = row.subarray(key, end).reduce((a, b) => a + b, 0);
    row.fill(sum, key, end);
    key = end;
  }
  return row;
}

/** The selected key, or else the strongest. */
const currentKey = () => state.key ?? strongestIn(groupedRow());

/** Return the strongest key of a row. For the weights of one head, this is the exact one from Python. */
function strongestIn(row, head = state.head, isGrouped = !isByCharacter()) {
  const isExactRow = !isGrouped && isOneHead() && !isByNorm();
  return isExactRow ? strongestKey(state.layer, head, state.query) : argmax(row);
}

/** Return a name for the selected row. */
function rowName() {
  if (currentMode() === 'rollout') return `rollout up to layer ${layerNumber(state.layer)}`;
  const scope = state.scope === 'layer' ? `layer ${layerNumber(state.layer)}` : 'all layers';
  const heads = isOneHead() ? headName(state.layer, state.head) : `${currentMode()} of the heads in ${scope}`;
  return heads + (isByNorm() ? ', by output norm' : '');
}

function groupName(position) {
  const [first, last] = groupOf(position);
  if (isByCharacter()) return positionName(position);
  if (first === last) return `${currentGroup()} ${nameAt(first)}`;
  // Isolated, so that right-to-left letters do not reorder the numbers that follow.
  return `${currentGroup()} \u2068${range(last - first + 1, i => glyphAt(first + i)).join('')}\u2069`;
}

/** Describe the selection for the status line: "query 17 e, strongest key 16 h, 0.43". */
function describeSelection() {
  const row = groupedRow();
  const best = strongestIn(row);
  const share = key => `${isExact() ? '' : 'about '}${formatWeight(row[key])}`;
  const selected = state.key === null || state.key === best ? '' : `; key ${groupName(state.key)}, ${share(state.key)}`;
  return `query ${groupName(state.query)}, strongest key ${groupName(best)}, ${share(best)}${selected}`;
}

/** Make a list of the characters of the text, with one tab stop. The selected character is the query. */
function textStrip(label, shade) {
  const strip = make('div', { class: 'strip', role: 'listbox', 'aria-label': label, 'aria-orientation': 'horizontal' });
  const cells = range(T, position => {
    const cell = characterAt(position);
    cell.setAttribute('role', 'option');
    cell.setAttribute('tabindex', -1);
    cell.setAttribute('aria-label', positionName(position));
    cell.dataset.position = position;
    strip.append(cell);
    if (nameAt(position) === 'newline') strip.append(make('br'));
    else if (isReplaced(position)) strip.append(make('wbr'));
    return cell;
  });
  const positionOf = ({ target }) => (target.dataset.position === undefined ? null : Number(target.dataset.position));
  strip.addEventListener('mouseover', event => {
    const position = positionOf(event);
    if (!hasMoved(event) || position === null) return;
    if (!state.pinned && position !== state.query) change({ query: position });
    else if (state.pinned && position <= state.query && position !== state.key) change({ key: position });
  });
  strip.addEventListener('click', event => {
    const position = positionOf(event);
    if (position !== null) change({ query: position, pinned: !(state.pinned && position === state.query) });
  });
  let selected = 0;
  function draw() {
    const isFocused = strip.contains(document.activeElement);
    cells[selected].setAttribute('tabindex', -1);
    cells[selected].removeAttribute('aria-selected');
    selected = state.query;
    cells[selected].setAttribute('tabindex', 0);
    cells[selected].setAttribute('aria-selected', 'true');
    if (isFocused) cells[selected].focus({ preventScroll: true });
    shade(cells, strip);
  }
  return { strip, draw };
}

function shadeByAttention(cells, strip) {
  const row = groupedRow();
  const isSeveral = currentMode() === 'several';
  const isWithin = (position, [first, last]) => position >= first && position <= last;
  const query = groupOf(state.query);
  const key = groupOf(currentKey());
  const sharesOf = isByNorm() ? normSharesOf : weightsOf;
  const headRow = head => groupedRow(query => sharesOf(state.layer, head, query));
  // Relative to the strongest key, so that heads with broad attention are visible too.
  const relative = row => row.map(weight => weight / row[argmax(row)]);
  const rows = isSeveral ? state.several.map(head => [head, relative(headRow(head))]) : [];
  strip.classList.toggle('striped', isSeveral);
  strip.style.setProperty('--stripes', String(rows.length));
  cells.forEach((cell, position) => {
    const isPast = position < row.length;
    cell.classList.toggle('query', isWithin(position, query));
    cell.classList.toggle('key', isPast && isWithin(position, key));
    cell.classList.toggle('future', !isPast);
    const color = isPast ? ramp(depthOf(Math.min(row[position], 1))) : null;
    fill(cell, color);
    if (color && isSeveral) cell.style.background = stripes(rows, position, css(color));
    const strongest = rows.filter(([head, row]) => strongestIn(row, head) === position).map(([head]) => head);
    if (strongest.length) cell.dataset.heads = strongest.join(',');
    else delete cell.dataset.heads;
  });
}

/** Return a background of a color, and below it a stripe per head in the head's color: the more opaque, the more. */
function stripes(rows, position, above) {
  const stripe = ([head, row], i) => {
    const opacity = Math.round(depthOf(row[position]) * 255);
    const color = headColor(head) + opacity.toString(16).padStart(2, '0');
    return `linear-gradient(${color}, ${color}) 0 calc(100% - ${(rows.length - 1 - i) * 6}px) / 100% 5px no-repeat`;
  };
  const shading = `linear-gradient(${above}, ${above}) 0 0 / 100% calc(100% - ${rows.length * 6}px) no-repeat`;
  return [...rows.map(stripe), shading].join(', ');
}

views.push({
  name: 'text',
  title: 'Text',
  build(panel) {
    this.text = textStrip('The text. The selected character is the query.', shadeByAttention);
    const heads = range(H, head =>
      checkbox(
        () => state.several.includes(head),
        () => toggleHead(head),
        chip(headColor(head), `head ${head}`),
      ),
    );
    const title = 'Heads in this layer. Each has a stripe in its color. Its number marks its strongest key.';
    const colors = make('fieldset', {}, make('legend', { text: title }), ...heads);
    const scope = choice('of', 'scope', { layer: 'this layer', all: 'all layers' });
    const setByNorm = byNorm => change({ byNorm });
    const byNorm = checkbox(() => state.byNorm, setByNorm, make('span', { text: 'Shade by output norm, |a·v·W_O|' }));
    updaters.push(() => {
      byNorm.hidden = state.mode === 'rollout';
      colors.hidden = state.mode !== 'several';
      scope.hidden = state.mode !== 'mean' && state.mode !== 'max';
    });
    const several = 'one head, and a color per head';
    const modes = { one: 'one head', several, mean: 'mean of heads', max: 'maximum of heads' };
    if (hasAllLayersBelow) modes.rollout = 'attention rollout up to this layer';
    panel.append(
      intro(
        'Point to a character, or select one and move with ← →. It becomes the query. The stronger the color of an ' +
          'earlier character, the more this head attends to it. Each head of the layer has a stripe in its color.',
      ),
      this.text.strip,
      controls(
        legend('0', '1 (square-root shading)'),
        choice('Show', 'mode', modes),
        scope,
        choice('Group by', 'group', { character: 'character', word: 'word', line: 'line' }),
        byNorm,
      ),
      colors,
    );
  },
  draw() {
    this.text.draw();
  },
});

/** Add a head to the heads shown together, or remove it. */
function toggleHead(head) {
  if (head >= H) return;
  const several = range(H).filter(other => (other === head) !== state.several.includes(other));
  change({ view: 'text', several, mode: 'several' });
}
