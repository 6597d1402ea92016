// What is selected, the address that says so, and the small parts that controls are made of.

const state = {
  view: 'text',
  layer: 0,
  head: 0,
  query: 0,
  key: null, // a key that was chosen; else the strongest
  pinned: false, // the query stays where it is while the pointer moves
  mode: 'one', // one head, several heads, their mean, their max or the rollout
  scope: 'layer', // what mean and max are taken over: the heads of this layer, or of all
  several: [], // the heads shown together
  group: 'character', // what is shaded as one: character, word or line
  written: false, // weigh by what is written, |a v W_O|, in place of a
  scale: 'root',
  stage: 'softmax',
  zoom: 1,
};
const views = []; // {name, title, build(panel), draw()}, in the order of their tabs; each file adds its own
const followers = []; // functions that bring a control up to date

function markCurrent(element, isCurrent) {
  if (isCurrent) element.setAttribute('aria-current', 'true');
  else element.removeAttribute('aria-current');
}

const SHORT = {
  v: 'view', l: 'layer', h: 'head', q: 'query', k: 'key',
  m: 'mode', c: 'scope', s: 'several', g: 'group', w: 'written',
};
const hasAllBelow = page.layers.every((layer, place) => layer === place); // as the rollout needs
const CHOICES = {
  mode: ['one', 'several', 'mean', 'max', ...(hasAllBelow ? ['rollout'] : [])],
  scope: ['layer', 'all'],
  group: ['character', 'word', 'line'],
};

let addressTimer; // browsers refuse an address that changes with each movement of the pointer

/** Changes what is selected, within bounds, and draws again. */
function change(changes) {
  const rowBefore = rowName();
  Object.assign(state, changes);
  state.layer = bounded(state.layer, L);
  state.head = bounded(state.head, H);
  state.query = bounded(state.query, T);
  if ('query' in changes && !('key' in changes)) state.key = null;
  if (state.key !== null) state.key = bounded(state.key, state.query + 1);
  if (!views.some(view => view.name === state.view)) state.view = 'text';
  clearTimeout(addressTimer);
  addressTimer = setTimeout(() => history.replaceState(null, '', address()), 200);
  draw(rowBefore !== rowName());
}

const bounded = (number, count) => Math.min(Math.max(Math.round(number) || 0, 0), count - 1);

function address() {
  const parts = [`l=${layerName(state.layer)}`, `h=${state.head}`, `q=${state.query}`, `v=${state.view}`];
  if (state.key !== null) parts.push(`k=${state.key}`);
  if (state.mode !== 'one') parts.push(`m=${state.mode}`);
  if (state.scope !== 'layer') parts.push(`c=${state.scope}`);
  if (state.mode === 'several') parts.push(`s=${state.several.join('.')}`);
  if (state.group !== 'character') parts.push(`g=${state.group}`);
  if (state.written) parts.push('w=1');
  return '#' + parts.join('&');
}

/** Reads an address like #l=2&h=3&q=17&v=text; of these parts what it does not name is as at the start, nonsense too. */
function fromAddress(hash) {
  const [layer, head, query] = page.scores.initial;
  const several = Array.from({ length: Math.min(H, 4) }, (_, first) => first);
  const found = { layer, head, query, key: null, several, written: false };
  Object.assign(found, { view: 'text', mode: 'one', scope: 'layer', group: 'character' });
  for (const [name, value] of new URLSearchParams(hash.replace(/^#/, ''))) {
    const what = SHORT[name];
    if (what === 'view') found.view = value;
    else if (what === 'written') found.written = value === '1';
    else if (what === 'several') found.several = headNumbers(value);
    else if (what === 'layer') found.layer = Math.max(0, page.layers.indexOf(Number(value)));
    else if (CHOICES[what]) found[what] = CHOICES[what].includes(value) ? value : found[what];
    else if (what && /^\d{1,6}$/.test(value)) found[what] = Number(value);
  }
  return found;
}

/** Reads heads like 0.2.5, each once and in order; those that are not there are passed over. */
function headNumbers(text) {
  const named = text.split('.').map(part => (/^\d{1,6}$/.test(part) ? Number(part) : H));
  return Array.from({ length: H }, (_, head) => head).filter(head => named.includes(head));
}

let pointerWas = '';

/** Whether the pointer itself moved: browsers also tell of a pointer that rests while the page moves below it. */
function hasMoved(event) {
  const pointer = `${event.screenX} ${event.screenY}`;
  const moved = pointer !== pointerWas;
  pointerWas = pointer;
  return moved;
}

/** Makes an element: `make('p', { class: 'note', text: 'words' }, child, …)`. Text never becomes markup. */
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === 'text') element.textContent = value;
    else if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else if (value !== false) element.setAttribute(name, value === true ? '' : value);
  }
  element.append(...children);
  return element;
}

/** Makes a labelled choice of `options`, [value, words] each, for one part of the state. */
function choice(label, options, name) {
  const select = make(
    'select',
    { onchange: () => change({ [name]: numeric(select.value) }) },
    ...options.map(([value, words]) => make('option', { value, text: words })),
  );
  followers.push(() => {
    select.value = String(state[name]);
  });
  return make('label', { class: 'choice' }, make('span', { text: label }), select);
}

const numeric = text => (/^\d+$/.test(text) ? Number(text) : text);

/** Makes a box to tick for one part of the state. */
function tick(label, name) {
  const box = make('input', { type: 'checkbox', onchange: () => change({ [name]: box.checked }) });
  followers.push(() => {
    box.checked = state[name];
  });
  return make('label', { class: 'tick' }, box, make('span', { text: label }));
}

/** Makes a table with a heading for each column; `rows` are lists of words or elements. */
function table(caption, headings, rows) {
  const head = make('tr', {}, ...headings.map(words => make('th', { scope: 'col', text: words })));
  return make(
    'table',
    {},
    make('caption', { text: caption }),
    make('thead', {}, head),
    make('tbody', {}, ...rows.map(row => make('tr', {}, ...row.map(tableCell)))),
  );
}

function tableCell(content, column) {
  const attributes = column === 0 ? { scope: 'row' } : {};
  const cell = make(column === 0 ? 'th' : 'td', attributes);
  cell.append(content);
  return cell;
}

/** Makes what a view says that has no data: in one line, with the option that brings it. */
const missing = (what, option) => make('p', { class: 'note', text: `${what} ${option}` });

/** A region that may be wider than the screen, and that the keyboard can scroll. */
const scroller = (label, ...children) =>
  make('div', { class: 'scroll', role: 'group', tabindex: 0, 'aria-label': label }, ...children);

/** Makes a sign of the text that keeps its place whatever its script: isolated, from left to right. */
function signOf(place, extra = '') {
  return make('span', { class: (isUnseen(place) ? 'sign unseen ' : 'sign ') + extra, dir: 'ltr', text: sign(place) });
}
