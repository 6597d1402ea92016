// The keyboard, while the viewer has the focus and no control that needs the keys itself.

const ORDER = [
  'text',
  'overview',
  'matrix',
  'lines',
  'heads',
  'spread',
  'worked',
  'next',
  'characters',
  'positions',
  'ablation',
  'film',
  'compare',
];

const KEYS = [
  ['← →', 'the query, a character back or on'],
  ['Shift + ← →', 'the key'],
  ['↑ ↓', 'the layer'],
  ['[ ]', 'the head'],
  ['Home End', 'the first or last query'],
  ['0 to 9', 'in the text: this head with others, or not'],
  ['a, x', 'in the text: mean, maximum of heads, and back'],
  ['g', 'in the text: shade characters, words or lines'],
  ['m', 'matrix or text'],
  ['+ −', 'zoom of the matrix'],
  ['Enter, Esc', 'pin the query so that the pointer does not move it, or let it go'],
  ['s', 'save the picture as PNG'],
  ['?', 'this help'],
];

const ACTIONS = {
  ArrowLeft: () => change({ query: state.query - 1 }),
  ArrowRight: () => change({ query: state.query + 1 }),
  ArrowUp: () => change({ layer: state.layer - 1 }),
  ArrowDown: () => change({ layer: state.layer + 1 }),
  '[': () => change({ head: state.head - 1 }),
  ']': () => change({ head: state.head + 1 }),
  Home: () => change({ query: 0 }),
  End: () => change({ query: T - 1 }),
  a: () => change({ view: 'text', mode: state.mode === 'mean' ? 'one' : 'mean' }),
  x: () => change({ view: 'text', mode: state.mode === 'max' ? 'one' : 'max' }),
  g: () => change({ view: 'text', group: { character: 'word', word: 'line', line: 'character' }[state.group] }),
  m: () => change({ view: state.view === 'matrix' ? 'text' : 'matrix' }),
  '+': () => change({ zoom: Math.min(8, state.zoom * 2) }),
  '-': () => change({ zoom: Math.max(1, state.zoom / 2) }),
  Enter: () => change({ pinned: true }),
  Escape: () => change({ pinned: false, key: null }),
  s: () => savePng(),
  '?': () => help().showModal(),
};

function pressed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const tag = event.target.tagName;
  if (['SELECT', 'INPUT', 'TEXTAREA', 'DIALOG'].includes(tag)) return;
  if (event.target.getAttribute('role') === 'tab' && !event.shiftKey) return;
  if (['BUTTON', 'SUMMARY'].includes(tag) && ['Enter', ' '].includes(event.key)) return;
  if (event.target.classList.contains('scroll') && /^(Arrow|Home|End)/.test(event.key) && !event.shiftKey) return;
  const act =
    event.shiftKey && /^Arrow(Left|Right)$/.test(event.key)
      ? () => change({ key: currentKey() + (event.key === 'ArrowLeft' ? -1 : 1) })
      : /^\d$/.test(event.key)
        ? () => toggleHead(Number(event.key))
        : ACTIONS[event.key];
  if (!act) return;
  event.preventDefault();
  act();
  if (document.activeElement.getAttribute('role') === 'option')
    document.activeElement.scrollIntoView({ block: 'nearest' });
}

function help() {
  const found = document.querySelector('dialog');
  if (found) return found;
  const close = make('button', { type: 'button', text: 'Close', onclick: () => dialog.close() });
  const list = make('dl', { class: 'about' });
  for (const [keys, words] of KEYS)
    list.append(make('div', {}, make('dt', { text: keys }), make('dd', { text: words })));
  const dialog = make('dialog', { 'aria-label': 'Keys' }, make('h2', { text: 'Keys' }), list, close);
  document.body.append(dialog);
  return dialog;
}

/** Saves the canvas of the view as a file; of a view without one, the matrix of the head. */
function savePng() {
  let canvas = document.querySelector(`#panel-${state.view} canvas.heat, #panel-${state.view} > canvas`);
  const isOfHead = !canvas || state.view === 'matrix';
  if (!canvas) {
    canvas = pixels(T, T, (query, key) =>
      key > query ? ramp(0) : ramp(depthOf(weightsOf(state.layer, state.head, query)[key])),
    );
  }
  canvas.toBlob(blob => {
    const link = make('a', {
      href: URL.createObjectURL(blob),
      download: `${isOfHead ? 'attention' : state.view}-layer${layerName(state.layer)}-head${state.head}.png`,
    });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  });
}
