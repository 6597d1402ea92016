// Colours, and pictures of tables. Weights are one hue from light to dark (in dark mode from dark to light), so that
// they can be read in grey. Heads have the colours of Okabe and Ito, which colour-blind readers can tell apart.

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
const SIGNS = {
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
const HEADS = ['#E69F00', '#56B4E9', '#009E73', '#F0E442', '#0072B2', '#D55E00', '#CC79A7', '#888888'];
const dark = matchMedia('(prefers-color-scheme: dark)');
const FUTURE = { light: [236, 236, 236], dark: [48, 50, 56] };
const theme = () => (dark.matches ? 'dark' : 'light');

/** Returns the colour [r, g, b] of a depth from 0 to 1. */
function ramp(depth) {
  const [from, middle, to] = RAMPS[theme()];
  const share = Math.min(Math.max(depth, 0), 1) * 2;
  return share < 1 ? mix(from, middle, share) : mix(middle, to, share - 1);
}

/** Returns the colour of a difference from -1 to 1: orange below, blue above. */
function rampSigned(difference) {
  const [below, zero, above] = SIGNS[theme()];
  return mix(zero, difference < 0 ? below : above, Math.min(Math.abs(difference), 1));
}

const mix = (from, to, share) => from.map((channel, i) => Math.round(channel + (to[i] - channel) * share));
const css = ([r, g, b]) => `rgb(${r}, ${g}, ${b})`;
const headColour = head => HEADS[head % HEADS.length];

/** Returns black or white, whichever can be read on a colour; one of them always has a contrast of 4.5. */
function inkOn(colour) {
  const [r, g, b] = colour.map(channel => {
    const share = channel / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? '#000' : '#fff';
}

/** Depth of a weight: its square root, so that one per cent can be seen. */
const depthOf = weight => Math.sqrt(weight);

/** Gives a canvas a size in CSS pixels, sharp on any screen, and returns where to draw. */
function sized(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const pen = canvas.getContext('2d');
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.imageSmoothingEnabled = false;
  pen.font = '12px ui-monospace, monospace';
  pen.textAlign = 'center';
  pen.textBaseline = 'middle';
  return pen;
}

const inkNow = () => getComputedStyle(document.body).color;

/** Returns a small picture with a pixel for each cell of a table; `colour(row, column)` may return null for none. */
function pixels(rows, columns, colour) {
  const canvas = document.createElement('canvas');
  canvas.width = columns;
  canvas.height = rows;
  const pen = canvas.getContext('2d');
  const image = pen.createImageData(columns, rows);
  for (let row = 0, at = 0; row < rows; row++) {
    for (let column = 0; column < columns; column++, at += 4) {
      const found = colour(row, column);
      if (found === null) continue;
      image.data[at] = found[0];
      image.data[at + 1] = found[1];
      image.data[at + 2] = found[2];
      image.data[at + 3] = 255;
    }
  }
  pen.putImageData(image, 0, 0);
  return canvas;
}

/**
 * Makes a picture of a table that can be pointed at.
 *
 * `draw({name, rows, columns, colour, rowSign, columnSign, cross, from, width})` draws cells from row and column
 * `from`, as wide as fits into `width`; the picture is only made anew when `name` changes. `cross` marks a cell.
 * `point(row, column, isClick)` is told where the pointer is.
 */
function heatmap(point) {
  const canvas = make('canvas', { role: 'img', class: 'heat' });
  const margin = 16;
  let picture = null,
    pictured = '',
    shown = null;

  function draw(spec) {
    shown = { from: [0, 0], width: 560, ...spec };
    const { rows, columns, cross, from, rowSign, columnSign } = shown;
    const room = Math.min(shown.width, canvas.parentElement.clientWidth || shown.width) - margin - 1;
    const fit = room / Math.max(rows, columns);
    const cell = (shown.cell = fit >= 1 ? Math.min(Math.floor(fit), 40) : fit);
    const name = `${theme()} ${spec.name} ${from} ${rows} ${columns}`;
    if (pictured !== name) {
      picture = pixels(rows, columns, (row, column) => shown.colour(row + from[0], column + from[1]));
      pictured = name;
    }
    const pen = sized(canvas, margin + columns * cell + 1, margin + rows * cell + 1);
    pen.imageSmoothingEnabled = cell < 1;
    pen.drawImage(picture, margin, margin, columns * cell, rows * cell);
    pen.fillStyle = pen.strokeStyle = inkNow();
    if (cell >= 11) {
      for (let row = 0; row < rows && rowSign; row++)
        pen.fillText(rowSign(row + from[0]), 8, margin + (row + 0.5) * cell);
      for (let at = 0; at < columns && columnSign; at++)
        pen.fillText(columnSign(at + from[1]), margin + (at + 0.5) * cell, 8);
    }
    if (cross) {
      const [x, y] = [margin + (cross[1] - from[1]) * cell, margin + (cross[0] - from[0]) * cell];
      pen.strokeStyle = theme() === 'dark' ? '#FFB057' : '#B25200';
      pen.strokeRect(margin + 0.5, y + 0.5, columns * cell - 1, Math.max(cell - 1, 1));
      pen.strokeRect(x + 0.5, margin + 0.5, Math.max(cell - 1, 1), rows * cell - 1);
    }
  }

  function tell(event, isClick) {
    if (!shown || !point) return;
    const box = canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left - margin) / shown.cell);
    const row = Math.floor((event.clientY - box.top - margin) / shown.cell);
    if (row < 0 || column < 0 || row >= shown.rows || column >= shown.columns) return;
    point(row + shown.from[0], column + shown.from[1], isClick);
  }

  canvas.addEventListener('mousemove', event => {
    if (hasMoved(event)) tell(event, false);
  });
  canvas.addEventListener('click', event => tell(event, true));
  return {
    canvas,
    draw,
    cellAt: (row, column) => [
      margin + (column - shown.from[1] + 0.5) * shown.cell,
      margin + (row - shown.from[0] + 0.5) * shown.cell,
    ],
  };
}

/** Makes the legend of the ramp. */
function legend(low, high) {
  const canvas = make('canvas', { role: 'img', 'aria-label': `Shades from ${low} to ${high}` });
  followers.push(() => {
    const pen = sized(canvas, 128, 12);
    for (let i = 0; i < 128; i++) {
      pen.fillStyle = css(ramp(i / 127));
      pen.fillRect(i, 0, 1, 12);
    }
  });
  return make('span', { class: 'legend' }, make('span', { text: low }), canvas, make('span', { text: high }));
}
