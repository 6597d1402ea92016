// The user's selection, and the address that stores it.

const state = {
  view: 'text',
  layer: 0,
  head: 0,
  query: 0,
  key: null, // the selected key; null selects the strongest
  pinned: false, // whether the pointer leaves the query in place
  mode: 'one', // what the text view shows: one head, also stripes of several, their mean or max, or the rollout
  scope: 'layer', // the heads in the mean and max: those of this layer or of all layers
  several: [], // the heads that have stripes
  group: 'character', // what is shaded as a unit: a character, a word or a line
  byNorm: false, // shade by |a v W_O| instead of the weight a
  shading: 'root',
  stage: 'softmax',
  zoom: 1,
};
const views = []; // {name, title, build(panel), draw()}, in tab order; each file adds its own
const updaters = []; // functions that update a control from the state

const ADDRESS = {
  v: 'view',
  l: 'layer',
  h: 'head',
  q: 'query',
  k: 'key',
  m: 'mode',
  c: 'scope',
  s: 'several',
  g: 'group',
  n: 'byNorm',
};
const hasAllLayersBelow = page.layers.every((number, layer) => number === layer); // the rollout needs them
const CHOICES = {
  mode: ['one', 'several', 'mean', 'max', ...(hasAllLayersBelow ? ['rollout'] : [])],
  scope: ['layer', 'all'],
  group: ['character', 'word', 'line'],
};

const INITIAL_MODE = H > 1 ? 'several' : 'one';
const initialHeads = () => range(Math.min(H, HEAD_COLORS.length));

let addressTimer; // browsers reject frequent address changes

/** Change the selection, clamp it to its range, and redraw. */
function change(changes) {
  const rowBefore = rowName();
  Object.assign(state, changes);
  state.layer = clamp(state.layer, L);
  state.head = clamp(state.head, H);
  state.query = clamp(state.query, T);
  if ('query' in changes && !('key' in changes)) state.key = null;
  if (state.key !== null) state.key = clamp(state.key, state.query + 1);
  if (!views.some(view => view.name === state.view)) state.view = 'text';
  clearTimeout(addressTimer);
  addressTimer = setTimeout(() => history.replaceState(null, '', address()), 200);
  draw(rowBefore !== rowName());
}

const clamp = (number, count) => Math.min(Math.max(Math.round(number) || 0, 0), count - 1);

function address() {
  const parts = [`l=${layerNumber(state.layer)}`, `h=${state.head}`, `q=${state.query}`, `v=${state.view}`];
  if (state.key !== null) parts.push(`k=${state.key}`);
  if (state.mode !== INITIAL_MODE) parts.push(`m=${state.mode}`);
  if (state.scope !== 'layer') parts.push(`c=${state.scope}`);
  const heads = state.several.join('.');
  if (state.mode === 'several' && heads !== initialHeads().join('.')) parts.push(`s=${heads}`);
  if (state.group !== 'character') parts.push(`g=${state.group}`);
  if (state.byNorm) parts.push('n=1');
  return '#' + parts.join('&');
}

/** Read an address such as #l=2&h=3&q=17&v=text. Missing or invalid parts get their initial values. */
function fromAddress(hash) {
  const [layer, head, query] = page.scores.initial;
  const found = { layer, head, query, key: null, several: initialHeads(), byNorm: false };
  Object.assign(found, { view: 'text', mode: INITIAL_MODE, scope: 'layer', group: 'character' });
  for (const [letter, value] of new URLSearchParams(hash.replace(/^#/, ''))) {
    const name = ADDRESS[letter];
    if (name === 'view') found.view = value;
    else if (name === 'byNorm') found.byNorm = value === '1';
    else if (name === 'several') found.several = range(H).filter(head => value.split('.').includes(String(head)));
    else if (name === 'layer') found.layer = Math.max(0, page.layers.indexOf(Number(value)));
    else if (CHOICES[name]) found[name] = CHOICES[name].includes(value) ? value : found[name];
    else if (name && /^\d{1,6}$/.test(value)) found[name] = Number(value);
  }
  return found;
}

let lastPointer = '';

/** Whether the pointer moved. Browsers also send events when the page moves under a stationary pointer. */
function hasMoved(event) {
  const pointer = `${event.screenX} ${event.screenY}`;
  const moved = pointer !== lastPointer;
  lastPointer = pointer;
  return moved;
}
