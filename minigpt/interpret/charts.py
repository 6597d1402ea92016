"""The plot of a comparison: validation loss by training time."""

import math
from typing import TYPE_CHECKING

import numpy as np

from minigpt.interpret.comparison import Comparison

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#888888")
"""Colors that color-blind readers can tell apart (Okabe and Ito 2008, https://jfly.uni-koeln.de/color/)."""

LABEL = 0.04
"""The height of a label, as a share of the height of the plot."""


def draw(comparison: Comparison) -> "Figure":
    """Draw a line for each run, in the color of its group, with the name at its end.

    The y axis fits the points after the first tenth of the time: losses start far above where they end.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    runs = [(run, COLORS[index % len(COLORS)]) for index, group in enumerate(comparison.groups) for run in group.runs]
    longest = max((max(run.curve.seconds, default=0.0) for run, _ in runs), default=0.0)
    unit, seconds = ("minutes", 60.0) if longest > 180 else ("s", 1.0)
    figure = Figure((8, 5), dpi=128, layout="constrained")
    axes = figure.add_subplot()
    late, ends = list[float](), list[tuple[float, float, str, str]]()
    for run, color in runs:
        x, y = np.array(run.curve.seconds) / seconds, np.array(run.curve.loss)
        if comparison.unit != "loss" and run.result.loss:
            y *= run.result.bits_per_character / run.result.loss
        late.extend(y[x * seconds >= longest / 10])
        if len(x):
            axes.plot(x, y, color=color)
            ends.append((float(y[-1]), float(x[-1]), run.name, color))
    if late:
        margin = 0.05 * (max(late) - min(late)) or 0.5
        axes.set_ylim(min(late) - margin, max(late) + margin)
    height = -math.inf
    for loss, end, name, color in sorted(ends):
        height = max(loss, height + LABEL * (axes.get_ylim()[1] - axes.get_ylim()[0]))  # labels do not overlap
        label = axes.annotate(name, (end, height), (4, 0), textcoords="offset points", va="center", color=color)
        label.set_parse_math(False)
    measure = "nats" if comparison.unit == "loss" else "bits per character"
    axes.set_title(f"Validation loss ({measure}) by training time ({unit})", loc="left")
    axes.set_xlabel(f"training time ({unit})")
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.grid(color="#e4e4e4")
    axes.spines[["top", "right"]].set_visible(False)
    return figure
