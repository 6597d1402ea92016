// Puts the page together: the tabs, the cursor that all views share, and what is read aloud.

const status = make('p', { id: 'status', role: 'status', 'aria-live': 'polite' });
const tabs = new Map();
const panels = new Map();
const built = new Set();

function tabBar() {
  const bar = make('div', { role: 'tablist', class: 'tabs', 'aria-label': 'Views' });
  views.sort((a, b) => ORDER.indexOf(a.name) - ORDER.indexOf(b.name));
  for (const view of views) {
    const tab = make('button', {
      type: 'button',
      role: 'tab',
      id: `tab-${view.name}`,
      'aria-controls': `panel-${view.name}`,
      text: view.title,
      onclick: () => change({ view: view.name }),
    });
    tabs.set(view.name, tab);
    bar.append(tab);
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

/** Makes the bar that says where the cursor is, and moves it. */
function cursorBar() {
  const numbered = (count, name) => Array.from({ length: count }, (_, i) => [i, String(name(i))]);
  const excerpt = make('span', { class: 'excerpt', 'aria-hidden': 'true' });
  const place = make('input', {
    type: 'number',
    min: 0,
    max: T - 1,
    onchange: () => change({ query: Number(place.value) }),
  });
  const pin = make('button', { type: 'button', onclick: () => change({ pinned: !state.pinned }) });
  followers.push(() => {
    place.value = state.query;
    pin.textContent = state.pinned ? 'Unpin' : 'Pin';
    pin.setAttribute('aria-pressed', String(state.pinned));
    excerpt.hidden = ['text', 'next'].includes(state.view);
    if (excerpt.hidden) return;
    const first = Math.max(0, state.query - 24),
      last = Math.min(T - 1, state.query + 12),
      key = currentKey();
    excerpt.replaceChildren(
      ...Array.from({ length: last - first + 1 }, (_, i) => first + i).map(at =>
        signOf(at, at === state.query ? 'query' : at === key ? 'key' : at > state.query ? 'future' : ''),
      ),
    );
  });
  const step = (words, label, by) =>
    make('button', {
      type: 'button',
      text: words,
      'aria-label': label,
      onclick: () => change({ query: state.query + by }),
    });
  return make(
    'div',
    { class: 'cursor controls' },
    choice('Layer', numbered(L, layerName), 'layer'),
    choice(
      'Head',
      numbered(H, head => head),
      'head',
    ),
    make('label', { class: 'choice' }, make('span', { text: 'Query' }), place),
    step('‹', 'Query back', -1),
    step('›', 'Query on', 1),
    pin,
    make('button', { type: 'button', text: 'Save picture', onclick: savePng }),
    make('button', { type: 'button', text: 'Keys', onclick: () => help().showModal() }),
    excerpt,
  );
}

/** Draws what the state says: the controls, the open view, and what is read aloud. */
function draw(isOtherRow = false) {
  const left = [...panels].some(([name, panel]) => name !== state.view && panel.contains(document.activeElement));
  for (const [name, tab] of tabs) {
    const isOpen = name === state.view;
    tab.setAttribute('aria-selected', String(isOpen));
    tab.setAttribute('tabindex', isOpen ? 0 : -1);
    panels.get(name).hidden = !isOpen;
  }
  if (left) panels.get(state.view).focus({ preventScroll: true }); // or the keys would go nowhere
  const view = views.find(one => one.name === state.view);
  if (!built.has(view.name)) {
    built.add(view.name);
    view.build(panels.get(view.name));
  }
  followers.forEach(follow => follow());
  view.draw();
  status.textContent = (isOtherRow ? `${rowName()}: ` : '') + reading();
}

function start() {
  const viewer = document.getElementById('viewer');
  const side = make('aside', { 'aria-label': 'The query in numbers' });
  const head = make('p', { class: 'head' });
  followers.push(() => {
    side.hidden = !['text', 'matrix', 'lines'].includes(state.view);
    head.textContent = `${summary(state.layer, state.head)} Loss without it: ${lossWithout(state.layer, state.head)}.`;
    document.getElementById('beside').textContent =
      `for ${headName(state.layer, state.head)} ${lossWithout(state.layer, state.head)}.`;
  });
  side.append(head, strongestKeys());
  const body = make('div', { class: 'body' });
  const bar = tabBar();
  for (const view of views) {
    const panel = make('section', {
      role: 'tabpanel',
      tabindex: -1,
      id: `panel-${view.name}`,
      'aria-labelledby': `tab-${view.name}`,
      hidden: true,
    });
    panels.set(view.name, panel);
    body.append(panel);
  }
  body.append(side);
  viewer.append(bar, cursorBar(), status, body);
  viewer.addEventListener('keydown', pressed);
  document.getElementById('agreement').textContent =
    `The weights come from the explicit formula; the model's fast path agrees with it within ` +
    `${page.attention.max_error} of a head's largest value. ` +
    `Rows add up to 1 within ${page.attention.row_error}. Weights are stored to two decimals.`;
  change(fromAddress(location.hash));
  window.addEventListener('hashchange', event => change(fromAddress(new URL(event.newURL).hash)));
  window.addEventListener('resize', () => draw());
  dark.addEventListener('change', () => draw());
}

let firstView = null; // milliseconds from the start of loading to the first view
unpackAll(page)
  .then(start)
  .then(() => {
    firstView = performance.now();
  })
  .catch(error => {
    const words =
      typeof DecompressionStream === 'undefined'
        ? 'This page needs a browser of 2023 or later.'
        : `This page is broken: ${error}`;
    document.getElementById('viewer').append(make('p', { class: 'warning', text: words }));
    throw error;
  });
