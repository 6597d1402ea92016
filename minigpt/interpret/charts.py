"""Line charts."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = NDArray[np.float64]

WIDTH, HEIGHT = 7.6, 5.0
"""Size of a panel, in inches of 100 pixels."""
LABEL = 0.04
"""The height of a label of a line, as a share of the height of its panel."""
DECADES = 6
"""The most that a logarithmic y axis covers. A curve that vanishes leaves the panel, and the others stay apart."""
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#888888")
"""Colors that color-blind readers can tell apart (Okabe and Ito 2008, https://jfly.uni-koeln.de/color/)."""


@dataclass(frozen=True)
class Line:
    """A curve and its band, (N,) each. The chart skips points that are not finite."""

    x: Array
    y: Array
    low: Array
    high: Array


@dataclass(frozen=True)
class Panel:
    """A chart: a line per label, on axes that may be logarithmic."""

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


def draw(panels: Sequence[Panel], labels: Sequence[str]) -> "Figure":
    """Draw panels in two columns, or a single one, with a label at the end of each line."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    columns = min(2, len(panels))
    rows = math.ceil(len(panels) / columns)
    layout = ConstrainedLayoutEngine(w_pad=0.15, h_pad=0.1)
    figure = Figure((columns * WIDTH, rows * HEIGHT), dpi=100, layout=layout)
    for index, panel in enumerate(panels):
        _draw_panel(figure.add_subplot(rows, columns, index + 1), panel, labels)
    return figure


def _draw_panel(axes: "Axes", panel: Panel, labels: Sequence[str]) -> None:
    axes.set_title(panel.title, loc="left")
    axes.set_xlabel(panel.x_label)
    axes.grid(color="#e4e4e4")
    axes.spines[["top", "right"]].set_visible(False)  # labels cross them
    if panel.x_base:
        axes.set_xscale("log", base=panel.x_base)
        axes.xaxis.set_major_formatter("{x:g}")
    if panel.y_base:
        axes.set_yscale("log", base=panel.y_base)
    lines = [np.stack((line.x, line.y, line.low, line.high)) for line in panel.lines]  # (4, N) each
    lines = [p[:, np.isfinite(p).all(0) & ((p[1:] > 0).all(0) | (not panel.y_base))] for p in lines]
    for index, (x, y, low, high) in enumerate(lines):
        if x.size:
            axes.plot(x, y, marker=".", **_style(index))
            axes.fill_between(x, low, high, color=_style(index)["color"], alpha=0.2, linewidth=0)
    x, _, low, high = np.concatenate(lines, axis=1)
    if not x.size:
        axes.text(0.5, 0.5, "nothing was measured", ha="center", transform=axes.transAxes)
    elif panel.y_base:
        if low.min() < high.max() * 10.0**-DECADES:
            axes.set_ylim(high.max() * 10.0**-DECADES, 2 * high.max())
    elif panel.ignore_start:
        late = x >= x.max() / 10
        margin = 0.05 * (high[late].max() - low[late].min()) or 0.5
        axes.set_ylim(low[late].min() - margin, high[late].max() + margin)
    _label_ends(axes, lines, labels)


def _label_ends(axes: "Axes", lines: Sequence[Array], labels: Sequence[str]) -> None:
    """Write the label of each line (4, N) beside its last point in view. Labels that would overlap move apart."""
    axes.get_xlim(), axes.get_ylim()  # the limits that the points need
    to_fraction = axes.transData + axes.transAxes.inverted()
    ends = []
    for index, (x, y, *_) in enumerate(lines):
        points = to_fraction.transform(np.stack((x, y), 1))  # (N, 2)
        points = points[((points >= 0) & (points <= 1)).all(1)]
        ends += [(points[-1][1], points[-1][0], index)] if len(points) else []
    ends.sort()
    heights = [max(height, LABEL / 2) for height, _, _ in ends]
    for i in range(1, len(ends)):
        heights[i] = max(heights[i], heights[i - 1] + LABEL)
    for i in reversed(range(len(ends))):
        heights[i] = min(heights[i], heights[i + 1] - LABEL if i + 1 < len(ends) else 1.0)
    for height, (_, x, index) in zip(heights, ends, strict=True):
        color = _style(index)["color"]
        label = axes.text(x + LABEL / 3, height, labels[index], color=color, va="center", transform=axes.transAxes)
        label.set_fontsize(9)
        label.set_parse_math(False)


def _style(index: int) -> dict[str, Any]:
    """Return the color of a line. Lines that share a color differ in their dashes."""
    dashes = ("-", "--", ":", "-.")
    return {"color": COLORS[index % len(COLORS)], "linestyle": dashes[index // len(COLORS) % len(dashes)]}
