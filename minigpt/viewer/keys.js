// Keyboard shortcuts. They work while the focus is in the viewer, except in controls that need the keys themselves.

const SHORTCUTS = [
  ['← →', 'move the query'],
  ['Shift + ← →', 'move the key'],
  ['↑ ↓', 'change the layer'],
  ['[ ]', 'change the head'],
  ['Home, End', 'go to the first or last query'],
  ['0 to 9', 'show or hide the color of this head'],
  ['a, x', 'show the mean or maximum of heads, or go back'],
  ['g', 'group by character, word or line'],
  ['m', 'switch between matrix and text'],
  ['+ −', 'zoom the matrix'],
  ['Enter, Esc', 'pin the query, so that the pointer does not move it, or unpin it'],
  ['s', 'save the image as PNG'],
  ['?', 'show this help'],
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
  a: () => change({ view: 'text', mode: state.mode === 'mean' ? INITIAL_MODE : 'mean' }),
  x: () => change({ view: 'text', mode: state.mode === 'max' ? INITIAL_MODE : 'max' }),
  g: () => change({ view: 'text', group: { character: 'word', word: 'line', line: 'character' }[state.group] }),
  m: () => change({ view: state.view === 'matrix' ? 'text' : 'matrix' }),
  '+': () => change({ zoom: Math.min(8, state.zoom * 2) }),
  '-': () => change({ zoom: Math.max(1, state.zoom / 2) }),
  Enter: () => change({ pinned: true }),
  Escape: () => change({ pinned: false, key: null }),
  s: () => saveImage(),
  '?': () => showHelp(),
};

function actionOf({ key, shiftKey }) {
  if (shiftKey && key === 'ArrowLeft') return () => change({ key: currentKey() - 1 });
  if (shiftKey && key === 'ArrowRight') return () => change({ key: currentKey() + 1 });
  return /^\d$/.test(key) ? () => toggleHead(Number(key)) : ACTIONS[key];
}

/** Whether the focused element needs the key itself. */
function isTaken({ key, shiftKey, target }) {
  if (['SELECT', 'INPUT', 'TEXTAREA', 'DIALOG'].includes(target.tagName)) return true;
  if (target.getAttribute('role') === 'tab' && !shiftKey) return true;
  if (['BUTTON', 'SUMMARY'].includes(target.tagName) && ['Enter', ' '].includes(key)) return true;
  return target.classList.contains('scroll') && /^(Arrow|Home|End)/.test(key) && !shiftKey;
}

function onKeyDown(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || isTaken(event)) return;
  const action = actionOf(event);
  if (!action) return;
  event.preventDefault();
  action();
  const focused = document.activeElement;
  if (focused.getAttribute('role') === 'option') focused.scrollIntoView({ block: 'nearest' });
}

function showHelp() {
  let dialog = document.querySelector('dialog');
  if (!dialog) {
    const title = 'Keyboard shortcuts';
    const close = button('Close', () => dialog.close());
    dialog = make('dialog', { 'aria-label': title }, make('h2', { text: title }), definitions(SHORTCUTS), close);
    document.body.append(dialog);
  }
  dialog.showModal();
}

/** Save the canvas of the view as PNG, or the matrix of the head if the view has none. */
function saveImage() {
  const shown = document.querySelector(`#panel-${state.view} canvas.heatmap, #panel-${state.view} > canvas`);
  const weight = (query, key) => (key > query ? 0 : weightsOf(state.layer, state.head, query)[key]);
  const canvas = shown ?? pixels(T, T, (query, key) => ramp(depthOf(weight(query, key))));
  const name = shown && state.view !== 'matrix' ? state.view : 'attention';
  canvas.toBlob(blob => {
    const link = make('a', {
      href: URL.createObjectURL(blob),
      download: `${name}-layer${layerNumber(state.layer)}-head${state.head}.png`,
    });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  });
}
