// Colors, heatmaps and curves. Weights use one hue from light to dark (dark to light in dark mode), so they are also
// readable in grayscale. Heads use the Okabe-Ito palette, which colorblind readers can tell apart.

const RAMPS = {
  light: [
    [247, 251, 255],
    [70, 140, 205],
    [8, 48, 107],
  ],
  dark: [
    [24, 27, 34],
    [40, 100, 165],
    [170, 215, 255],
  ],
};
const DIVERGING = {
  light: [
    [178, 82, 0],
    [255, 255, 255],
    [0, 90, 160],
  ],
  dark: [
    [255, 176, 87],
    [24, 27, 34],
    [110, 190, 255],
  ],
};
const HEAD_COLORS = ['#E69F00', '#56B4E9', '#009E73', '#F0E442', '#0072B2', '#D55E00', '#CC79A7', '#888888'];
const FUTURE = { light: [236, 236, 236], dark: [48, 50, 56] };
const MARK = { light: '#B25200', dark: '#FFB057' };
const darkMode = matchMedia('(prefers-color-scheme: dark)');
const theme = () => (darkMode.matches ? 'dark' : 'light');

/** Return the color [r, g, b] for a shading depth from 0 to 1. */
function ramp(depth) {
  const [low, middle, high] = RAMPS[theme()];
  const share = Math.min(Math.max(depth, 0), 1) * 2;
  return share < 1 ? mix(low, middle, share) : mix(middle, high, share - 1);
}

/** Return the color for a difference from -1 (orange) to 1 (blue). */
function divergingRamp(difference) {
  const [below, zero, above] = DIVERGING[theme()];
  return mix(zero, difference < 0 ? below : above, Math.min(Math.abs(difference), 1));
}

const mix = (from, to, share) => from.map((channel, i) => Math.round(channel + (to[i] - channel) * share));
const css = ([r, g, b]) => `rgb(${r}, ${g}, ${b})`;
const headColor = head => HEAD_COLORS[head % HEAD_COLORS.length];
const textColor = () => getComputedStyle(document.body).color;

/** Return black or white, whichever is readable on a color. One of them always has a contrast ratio of at least 4.5. */
function contrastColor(color) {
  const [r, g, b] = color.map(channel => {
    const share = channel / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? '#000' : '#fff';
}

/** Fill an element with a color, or clear it if the color is null. */
function fill(element, color) {
  element.style.background = color ? css(color) : '';
  element.style.color = color ? contrastColor(color) : '';
}

/** The shading depth of a weight: its square root, so that 1% is visible. */
const depthOf = weight => Math.sqrt(weight);

/** Set the size of a canvas in CSS pixels, sharp on any screen, and return its context. */
function resize(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext('2d');
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.imageSmoothingEnabled = false;
  context.font = '12px ui-monospace, monospace';
  context.textAlign = 'center';
  context.textBaseline = 'middle';
  context.fillStyle = context.strokeStyle = textColor();
  return context;
}

/** Return a canvas with one pixel per table cell. `color(row, column)` may return null. */
function pixels(rows, columns, color) {
  const canvas = make('canvas', { width: columns, height: rows });
  const context = canvas.getContext('2d');
  const image = context.createImageData(columns, rows);
  for (let row = 0, at = 0; row < rows; row++) {
    for (let column = 0; column < columns; column++, at += 4) {
      const found = color(row, column);
      if (found) image.data.set([...found, 255], at);
    }
  }
  context.putImageData(image, 0, 0);
  return canvas;
}

/** Draw a thumbnail of n × n levels. Cells above the diagonal stay empty. */
function drawThumbnail(canvas, n, level) {
  const color = (row, column) => (column > row ? null : ramp(depthOf(page.levels[level(row, column)])));
  const size = n * Math.max(1, Math.floor(96 / n));
  canvas.width = canvas.height = size;
  const context = canvas.getContext('2d');
  context.imageSmoothingEnabled = false;
  context.drawImage(pixels(n, n, color), 0, 0, size, size);
}

/**
 * Make a heatmap of a table.
 *
 * `draw({name, rows, columns, color, rowLabel, columnLabel, cross, from, width})` draws the cells, starting at `from`,
 * as large as `width` allows. Pixels are recomputed only if `name` changes. `cross` marks the row and column of a cell.
 * `onpoint(row, column, isClick)` runs when the pointer is over a cell.
 */
function heatmap(onpoint) {
  const canvas = make('canvas', { role: 'img', class: 'heatmap' });
  const margin = 16;
  let image = null,
    imageName = '',
    shown = null;

  function draw(spec) {
    shown = { from: [0, 0], width: 560, ...spec };
    const { rows, columns, color, cross, from, rowLabel, columnLabel } = shown;
    const available = Math.min(shown.width, canvas.parentElement.clientWidth || shown.width) - margin - 1;
    const fit = available / Math.max(rows, columns);
    const cell = (shown.cell = fit >= 1 ? Math.min(Math.floor(fit), 40) : fit);
    const name = `${theme()} ${spec.name} ${from} ${rows} ${columns}`;
    if (imageName !== name) {
      image = pixels(rows, columns, (row, column) => color(row + from[0], column + from[1]));
      imageName = name;
    }
    const context = resize(canvas, margin + columns * cell + 1, margin + rows * cell + 1);
    context.imageSmoothingEnabled = cell < 1;
    context.drawImage(image, margin, margin, columns * cell, rows * cell);
    if (cell >= 11) {
      const center = i => margin + (i + 0.5) * cell;
      if (rowLabel) range(rows, row => context.fillText(rowLabel(row + from[0]), 8, center(row)));
      if (columnLabel) range(columns, column => context.fillText(columnLabel(column + from[1]), center(column), 8));
    }
    if (cross) {
      const [x, y] = [margin + (cross[1] - from[1]) * cell, margin + (cross[0] - from[0]) * cell];
      context.strokeStyle = MARK[theme()];
      context.strokeRect(margin + 0.5, y + 0.5, columns * cell - 1, Math.max(cell - 1, 1));
      context.strokeRect(x + 0.5, margin + 0.5, Math.max(cell - 1, 1), rows * cell - 1);
    }
  }

  function point(event, isClick) {
    if (!shown || !onpoint) return;
    const box = canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left - margin) / shown.cell);
    const row = Math.floor((event.clientY - box.top - margin) / shown.cell);
    if (row < 0 || column < 0 || row >= shown.rows || column >= shown.columns) return;
    onpoint(row + shown.from[0], column + shown.from[1], isClick);
  }

  canvas.addEventListener('mousemove', event => {
    if (hasMoved(event)) point(event, false);
  });
  canvas.addEventListener('click', event => point(event, true));
  const cellAt = (row, column) => [
    margin + (column - shown.from[1] + 0.5) * shown.cell,
    margin + (row - shown.from[0] + 0.5) * shown.cell,
  ];
  return { canvas, draw, cellAt };
}

/** Make a legend for the color ramp. */
function legend(low, high) {
  const canvas = make('canvas', { role: 'img', 'aria-label': `Shades from ${low} to ${high}` });
  updaters.push(() => {
    const context = resize(canvas, 128, 12);
    context.drawImage(
      pixels(1, 128, (_, i) => ramp(i / 127)),
      0,
      0,
      128,
      12,
    );
  });
  return make('span', { class: 'legend' }, make('span', { text: low }), canvas, make('span', { text: high }));
}

/** Make a legend entry: a colored chip with text. */
function chip(color, text) {
  const box = make('span', { class: 'chip' });
  box.style.backgroundColor = color;
  return make('span', { class: 'legend' }, box, make('span', { text }));
}

/** Draw curves of {values, color} over `xs`, with a number at both ends of each axis. */
function plot(canvas, curves, { low, high, xLabel, xs }) {
  const width = Math.min(640, canvas.parentElement.clientWidth),
    height = 180,
    left = 44,
    bottom = 24;
  const context = resize(canvas, width, height);
  const count = xs.length;
  const x = i => left + (width - left - 10) * (count > 1 ? (xs[i] - xs[0]) / (xs.at(-1) - xs[0]) : 0.5);
  const y = value => 10 + (height - bottom - 10) * (1 - (value - low) / (high - low || 1));
  context.strokeRect(left, 10, width - left - 10, height - bottom - 10);
  context.textAlign = 'right';
  [low, high].forEach(value => context.fillText(formatNumber(value), left - 4, y(value)));
  context.textAlign = 'center';
  context.fillText(xLabel, (left + width) / 2, height - 8);
  context.fillText(String(xs[0]), left, height - 8);
  if (count > 1) context.fillText(String(xs.at(-1)), width - 24, height - 8);
  for (const { values, color } of curves) {
    context.strokeStyle = context.fillStyle = color;
    context.lineWidth = 2;
    context.beginPath();
    const points = range(count).filter(i => values[i] !== null);
    points.forEach(i => context.lineTo(x(i), y(values[i])));
    context.stroke();
    if (count <= 20) points.forEach(i => context.fillRect(x(i) - 2, y(values[i]) - 2, 5, 5));
  }
}
