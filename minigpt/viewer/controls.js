// Elements: text, tables, and controls for the state.

/** Make an element: `make('p', { class: 'note', text: 'words' }, child, …)`. Text is never parsed as markup. */
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

const intro = text => make('p', { class: 'intro', text });
const note = () => make('p', { class: 'note', 'aria-live': 'polite' });
const button = (text, onclick, attributes = {}) => make('button', { type: 'button', text, onclick, ...attributes });
const controls = (...children) => make('div', { class: 'controls' }, ...children);

/** Make a menu for one part of the state. `options` maps values to labels, as an object or as pairs. */
function choice(label, name, options) {
  const pairs = Array.isArray(options) ? options : Object.entries(options);
  const toValue = text => (/^\d+$/.test(text) ? Number(text) : text);
  const select = make(
    'select',
    { onchange: () => change({ [name]: toValue(select.value) }) },
    ...pairs.map(([value, text]) => make('option', { value, text })),
  );
  updaters.push(() => {
    select.value = String(state[name]);
  });
  return make('label', { class: 'choice' }, make('span', { text: label }), select);
}

/** Make a checkbox. `isChecked` reads its value; `onchange` gets the new value. */
function checkbox(isChecked, onchange, ...label) {
  const box = make('input', { type: 'checkbox', onchange: () => onchange(box.checked) });
  updaters.push(() => {
    box.checked = isChecked();
  });
  return make('label', { class: 'choice' }, box, ...label);
}

/** Make a table. `rows` are lists of strings or elements. The first cell of each row is a header. */
function table(caption, headings, rows) {
  const cell = (content, column) => make(column ? 'td' : 'th', column ? {} : { scope: 'row' }, content);
  return make(
    'table',
    {},
    make('caption', { text: caption }),
    make('thead', {}, make('tr', {}, ...headings.map(text => make('th', { scope: 'col', text })))),
    make('tbody', {}, ...rows.map(row => make('tr', {}, ...row.map(cell)))),
  );
}

/** Make a list of terms and descriptions. */
const definitions = pairs =>
  make(
    'dl',
    { class: 'definitions' },
    ...pairs.map(([term, text]) => make('div', {}, make('dt', { text: term }), make('dd', { text }))),
  );

/** Make the line that a view without data shows. */
const unavailable = (what, option) =>
  make('p', { class: 'note', text: `To add ${what}, run: minigpt inspect ${page.argument} ${option}` });

/** Make an area that scrolls horizontally, also by keyboard. */
const scrollArea = (label, ...children) =>
  make('div', { class: 'scroll', role: 'group', tabindex: 0, 'aria-label': label }, ...children);

/** Make an element for a character of the text, isolated so that its script does not reorder its neighbors. */
function characterAt(position, extraClass = '') {
  const names = `character ${isReplaced(position) ? 'replaced ' : ''}${extraClass}`;
  return make('span', { class: names, dir: 'ltr', text: glyphAt(position) });
}

function markCurrent(element, isCurrent) {
  if (isCurrent) element.setAttribute('aria-current', 'true');
  else element.removeAttribute('aria-current');
}

/** Make a card for each head, with a canvas and a badge: [{layer, head, canvas, badge, element}]. */
function headCards(onclick) {
  return range(L * H, i => {
    const [layer, head] = [Math.floor(i / H), i % H];
    const canvas = make('canvas', { role: 'img' });
    const badge = make('span', { class: 'badge' });
    const name = make('strong', { text: headName(layer, head) });
    const element = make(
      'button',
      { type: 'button', class: 'card', onclick: () => onclick(layer, head) },
      canvas,
      name,
      badge,
    );
    return { layer, head, canvas, badge, element };
  });
}

/** Make a grid of cards. With the class `by-layer`, each layer has its own row. */
function cardGrid(cards) {
  const grid = make('div', { class: H <= 8 ? 'cards by-layer' : 'cards' }, ...cards.map(card => card.element));
  grid.style.setProperty('--heads', String(H));
  return grid;
}
