// Build the page: tabs, the selection bar, the status line, and the side panel.

const status = make('p', { id: 'status', role: 'status', 'aria-live': 'polite' });
const tabs = new Map();
const panels = new Map();
const built = new Set();

function tabBar() {
  const bar = make('div', { role: 'tablist', class: 'tabs', 'aria-label': 'Views' });
  for (const { name, title } of views) {
    const attributes = { role: 'tab', id: `tab-${name}`, 'aria-controls': `panel-${name}` };
    tabs.set(
      name,
      button(title, () => change({ view: name }), attributes),
    );
    bar.append(tabs.get(name));
  }
  bar.addEventListener('keydown', event => {
    const at = views.findIndex(view => view.name === state.view);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: views.length - 1 }[event.key];
    if (to === undefined || event.shiftKey || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    change({ view: views[(to + views.length) % views.length].name });
    tabs.get(state.view).focus();
  });
  return bar;
}

/** Make the bar that shows and changes the selection. */
function selectionBar() {
  const query = make('input', {
    type: 'number',
    min: 0,
    max: T - 1,
    onchange: () => change({ query: Number(query.value) }),
  });
  const pin = button('', () => change({ pinned: !state.pinned }));
  const excerpt = make('span', { class: 'excerpt', 'aria-hidden': 'true' });
  updaters.push(() => {
    query.value = state.query;
    pin.textContent = state.pinned ? 'Unpin' : 'Pin';
    pin.setAttribute('aria-pressed', String(state.pinned));
    excerpt.hidden = ['text', 'next'].includes(state.view);
    if (excerpt.hidden) return;
    const key = currentKey();
    const first = Math.max(0, state.query - 24);
    const classOf = at => (at === state.query ? 'query' : at === key ? 'key' : at > state.query ? 'future' : '');
    excerpt.replaceChildren(
      ...range(Math.min(T, state.query + 13) - first, i => characterAt(first + i, classOf(first + i))),
    );
  });
  const bar = controls(
    choice(
      'Layer',
      'layer',
      range(L, layer => [layer, String(layerNumber(layer))]),
    ),
    choice(
      'Head',
      'head',
      range(H, head => [head, String(head)]),
    ),
    make('label', { class: 'choice' }, make('span', { text: 'Query' }), query),
    button('‹', () => change({ query: state.query - 1 }), { 'aria-label': 'Previous query' }),
    button('›', () => change({ query: state.query + 1 }), { 'aria-label': 'Next query' }),
    pin,
    button('Save image', saveImage),
    button('Shortcuts', showHelp),
    excerpt,
  );
  bar.classList.add('selection');
  return bar;
}

/** Make the side panel: the selected head in words, and the strongest keys of the query. */
function sidePanel() {
  const head = make('p');
  const side = make('aside', { 'aria-label': 'Selected head and query' }, head, strongestKeys());
  updaters.push(() => {
    const loss = `${lossWithout(state.layer, state.head)}.`;
    side.hidden = !['text', 'matrix', 'lines'].includes(state.view);
    head.textContent = `${summary(state.layer, state.head)} Loss without it: ${loss}`;
    document.getElementById('loss-without').textContent = `${headName(state.layer, state.head)}: ${loss}`;
  });
  return side;
}

/** Draw the state: the controls, the open view, and the status line. */
function draw(isOtherRow = false) {
  const hidesFocus = [...panels].some(([name, panel]) => name !== state.view && panel.contains(document.activeElement));
  for (const [name, tab] of tabs) {
    const isOpen = name === state.view;
    tab.setAttribute('aria-selected', String(isOpen));
    tab.setAttribute('tabindex', isOpen ? 0 : -1);
    panels.get(name).hidden = !isOpen;
  }
  if (hidesFocus) panels.get(state.view).focus({ preventScroll: true }); // the shortcuts need focus in the viewer
  const view = views.find(view => view.name === state.view);
  if (!built.has(view.name)) {
    built.add(view.name);
    view.build(panels.get(view.name));
  }
  updaters.forEach(update => update());
  view.draw();
  status.textContent = (isOtherRow ? `${rowName()}: ` : '') + describeSelection();
}

function start() {
  for (const { name } of views) {
    const attributes = { role: 'tabpanel', tabindex: -1, id: `panel-${name}`, 'aria-labelledby': `tab-${name}` };
    panels.set(name, make('section', { ...attributes, hidden: true }));
  }
  const viewer = document.getElementById('viewer');
  viewer.append(tabBar(), selectionBar(), status, make('div', { class: 'body' }, ...panels.values(), sidePanel()));
  viewer.addEventListener('keydown', onKeyDown);
  const { max_error: maxError, row_error: rowError } = page.attention;
  document.getElementById('accuracy').textContent =
    'A reference implementation computes the weights. ' +
    (maxError === '0'
      ? "Its results equal the model's. "
      : `Its results differ from the model's by at most ${maxError}, relative to the largest value of a head. `) +
    `Each row sums to 1, to within ${rowError}. The page stores weights to two decimals.`;
  change(fromAddress(location.hash));
  window.addEventListener('hashchange', event => change(fromAddress(new URL(event.newURL).hash)));
  window.addEventListener('resize', () => draw());
  darkMode.addEventListener('change', () => draw());
}

unpackAll(page)
  .then(start)
  .catch(error => {
    const isOld = typeof DecompressionStream === 'undefined';
    const text = isOld ? 'This page needs a browser from 2023 or later.' : `Cannot show this page: ${error}`;
    document.getElementById('viewer').append(make('p', { class: 'warning', text }));
    throw error;
  });
