"""Line charts as images, in the style of the other images: drawn with Pillow, the same bytes for the same numbers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

Array = NDArray[np.float64]

WIDTH, HEIGHT = 760, 500
"""Size of a panel, in pixels."""
SCALE = 2
"""Draw this many times as large, then shrink: this smooths the lines."""
LEFT, RIGHT, TOP, BOTTOM = 76, 22, 46, 58
"""Margins of a panel around its axes."""
DECADES = 6
"""The most that a logarithmic y axis covers. A curve that vanishes leaves the panel, and the others stay apart."""
LINE = 26
"""Height of a line of the legend."""
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#888888")
"""Colors that color-blind readers can tell apart (Okabe and Ito 2008, https://jfly.uni-koeln.de/color/)."""
INK, GRID = "#282828", "#e4e4e4"


@dataclass(frozen=True)
class Line:
    """A curve and its band, (N,) each. The chart skips points that are not finite."""

    x: Array
    y: Array
    low: Array
    high: Array


@dataclass(frozen=True)
class Panel:
    """A chart: a line per label of the legend, on axes that may be logarithmic."""

    name: str
    title: str
    """What the y axis shows."""
    x_label: str
    lines: Sequence[Line]
    x_base: int | None = None
    """The base of a logarithmic axis."""
    y_base: int | None = None
    ignore_start: bool = False
    """Fit the y axis to the points after the first tenth of the x axis. Losses start far above where they end."""


class Axis:
    """Map numbers to pixels, from `begin` to `end`, linearly or logarithmically."""

    def __init__(self, low: float, high: float, begin: float, end: float, base: int | None) -> None:
        self.base, self.begin, self.end = base, begin, end
        self.low, self.high = (math.log(low, base), math.log(high, base)) if base else (low, high)
        if self.high - self.low < 1e-9 * max(1.0, abs(self.high)):  # a single value
            self.low, self.high = self.low - 0.5, self.high + 0.5

    def __call__(self, values: Array) -> list[float]:
        scaled = np.log(values) / math.log(self.base) if self.base else values
        pixels = self.begin + (scaled - self.low) / (self.high - self.low) * (self.end - self.begin)
        return list(map(float, pixels))

    def ticks(self) -> list[float]:
        """Return about six round numbers within the range."""
        span = self.high - self.low
        if self.base:
            exponents = range(math.floor(self.low), math.floor(self.high + 1e-9) + 1)
            every = max(1, math.ceil(len(exponents) / 9))
            steps = (1, 2, 5) if self.base == 10 and span < 3 else (1,)
            values = [step * float(self.base) ** n for n in exponents if n % every == 0 for step in steps]
            return [value for value in values if self.low - 1e-9 <= math.log(value, self.base) <= self.high + 1e-9]
        unit = 10.0 ** math.floor(math.log10(span / 5))
        step = next(unit * factor for factor in (1, 2, 5, 10) if span / (unit * factor) <= 7)
        return [step * n for n in range(math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9) + 1)]


def draw(panels: Sequence[Panel], labels: Sequence[str]) -> Image.Image:
    """Draw panels in two columns, or a single one, above a legend that names the lines of each panel."""
    columns = min(2, len(panels))
    rows = math.ceil(len(panels) / columns)
    entries = _legend(labels, columns * WIDTH)
    legend_height = LINE * (1 + max(row for _, row in entries)) + LINE
    size = (columns * WIDTH, rows * HEIGHT + legend_height)
    image = Image.new("RGB", (size[0] * SCALE, size[1] * SCALE), "white")
    for index, panel in enumerate(panels):
        row, column = divmod(index, columns)
        image.paste(_draw_panel(panel), (column * WIDTH * SCALE, row * HEIGHT * SCALE))
    canvas = ImageDraw.Draw(image)
    for index, ((x, row), label) in enumerate(zip(entries, labels, strict=True)):
        y = rows * HEIGHT + LINE * (row + 0.5)
        canvas.line([_at(x, y), _at(x + 30, y)], fill=_color(index), width=_width(index, 3))
        canvas.text(_at(x + 38, y), label, INK, _font(16), anchor="lm")
    return image.resize(size, Image.Resampling.LANCZOS)


def _legend(labels: Sequence[str], width: int) -> list[tuple[float, int]]:
    """Return the left edge and the row of each entry of the legend."""
    entries: list[tuple[float, int]] = []
    x, row = float(LEFT), 0
    for label in labels:
        needed = 38 + _font(16).getlength(label) / SCALE + 30
        if x > LEFT and x + needed > width:
            x, row = float(LEFT), row + 1
        entries.append((x, row))
        x += needed
    return entries


def _draw_panel(panel: Panel) -> Image.Image:
    """Draw a panel, SCALE times as large."""
    image = Image.new("RGB", (WIDTH * SCALE, HEIGHT * SCALE), "white")
    canvas = ImageDraw.Draw(image)
    canvas.text(_at(LEFT, TOP / 2), panel.title, INK, _font(19), anchor="lm")
    canvas.text(_at((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 16), panel.x_label, INK, _font(16), anchor="mm")
    lines = [(index, _drawable(line, panel)) for index, line in enumerate(panel.lines)]
    lines = [(index, line) for index, line in lines if len(line.x)]
    if not lines:
        canvas.text(_at(WIDTH / 2, HEIGHT / 2), "nothing was measured", INK, _font(16), anchor="mm")
        return image
    x_axis, y_axis = _axes(panel, [line for _, line in lines])
    for axis in (x_axis, y_axis):
        ticks = axis.ticks()
        for value, at in zip(ticks, axis(np.array(ticks)), strict=True):
            is_x = axis is x_axis
            ends = ((at, TOP), (at, HEIGHT - BOTTOM)) if is_x else ((LEFT, at), (WIDTH - RIGHT, at))
            canvas.line([_at(*end) for end in ends], fill=GRID, width=SCALE)
            place, anchor = (_at(at, HEIGHT - BOTTOM + 8), "mt") if is_x else (_at(LEFT - 8, at), "rm")
            canvas.text(place, _number(value), INK, _font(14), anchor=anchor)
    inside = image.copy()  # to cut off what is outside the axes
    _draw_lines(inside, lines, x_axis, y_axis)
    box = (LEFT * SCALE, TOP * SCALE, (WIDTH - RIGHT) * SCALE, (HEIGHT - BOTTOM) * SCALE)
    image.paste(inside.crop(box), box[:2])
    canvas.rectangle(box, outline=INK, width=SCALE)
    return image


def _draw_lines(image: Image.Image, lines: Sequence[tuple[int, Line]], x_axis: Axis, y_axis: Axis) -> None:
    canvas = ImageDraw.Draw(image, "RGBA")  # blends translucent colors
    for index, line in lines:
        if not np.array_equal(line.low, line.high):
            x = x_axis(line.x)
            edges = [*zip(x, y_axis(line.low), strict=True), *reversed([*zip(x, y_axis(line.high), strict=True)])]
            canvas.polygon([_at(*point) for point in edges], fill=_color(index) + "33")
    for index, line in lines:
        points = [_at(*point) for point in zip(x_axis(line.x), y_axis(line.y), strict=True)]
        canvas.line(points, fill=_color(index), width=_width(index, 2.4), joint="curve")
        if len(points) == 1:
            canvas.circle(points[0], 4 * SCALE, fill=_color(index))


def _drawable(line: Line, panel: Panel) -> Line:
    """Return the points of a line that its axes can show."""
    values = np.stack((line.x, line.y, line.low, line.high))  # (4, N)
    keep = np.isfinite(values).all(0)
    for base, numbers in ((panel.x_base, values[:1]), (panel.y_base, values[1:])):
        if base:
            keep &= (numbers > 0).all(0)
    return Line(*values[:, keep])


def _axes(panel: Panel, lines: Sequence[Line]) -> tuple[Axis, Axis]:
    xs = np.concatenate([line.x for line in lines])
    ys = np.concatenate([np.stack((line.low, line.high)) for line in lines], axis=1)  # (2, N)
    late = xs >= xs.max() / 10 if panel.ignore_start else np.ones(len(xs), dtype=bool)
    low, high = float(ys[0, late].min()), float(ys[1, late].max())
    if panel.y_base:
        low = max(low, high * 10.0**-DECADES)
    else:
        pad = (high - low) * 0.05
        low, high = low - pad, high + pad
    x_axis = Axis(float(xs.min()), float(xs.max()), LEFT, WIDTH - RIGHT, panel.x_base)
    return x_axis, Axis(low, high, HEIGHT - BOTTOM, TOP, panel.y_base)


def _at(x: float, y: float) -> tuple[float, float]:
    return (x * SCALE, y * SCALE)


def _color(index: int) -> str:
    return COLORS[index % len(COLORS)]


def _width(index: int, width: float) -> int:
    """Return the width of a line, which is thinner when the colors repeat."""
    return max(1, round(width * SCALE / (1 + index // len(COLORS))))


def _number(value: float) -> str:
    return f"{value:,.6g}".replace("e-0", "e-")


def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size * SCALE)
