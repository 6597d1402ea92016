"""The curves of a comparison, as panels of a picture."""

from collections.abc import Callable, Iterable

import numpy as np

from minigpt.interpret.charts import Array, Line, Panel
from minigpt.interpret.comparison import Comparison
from minigpt.interpret.measured import Measured

Points = tuple[Array, Array]
"""The x and y values of a curve, (N,) each."""
BINS_PER_OCTAVE = 4


def panels(comparison: Comparison) -> list[Panel]:
    """Return the four pictures of a comparison: loss by step, time and position, and gradient by distance.

    Positions and distances count from 1, and are averaged over bins.
    """
    unit = "nats" if comparison.unit == "loss" else "bits per character"

    def scale(run: Measured) -> float:
        return 1.0 if comparison.unit == "loss" else run.bits_per_nat

    def lines(points: Callable[[Measured], Points]) -> list[Line]:
        return [band([points(run) for run in group.runs]) for group in comparison.groups]

    by_step = lines(lambda run: (run.curve.steps, run.curve.loss * scale(run)))
    longest = max(run.curve.seconds.max(initial=0.0) for group in comparison.groups for run in group.runs)
    minute, clock = (60.0, "minutes") if longest > 180 else (1.0, "s")
    by_time = lines(lambda run: (run.curve.seconds / minute, run.curve.loss * scale(run)))
    by_position = lines(lambda run: smoothed(np.array(run.result.by_position) * scale(run)))
    by_distance = lines(lambda run: smoothed(run.gradient))
    before = "tokens before the predicted one"
    return [
        Panel("steps", f"validation loss ({unit}) by step", "training steps", by_step, ignore_start=True),
        Panel(
            "time",
            f"validation loss ({unit}) by time ({clock})",
            f"training time ({clock})",
            by_time,
            ignore_start=True,
        ),
        Panel("position", f"loss ({unit}) by position", f"position in the window: {before}", by_position, x_base=2),
        Panel("distance", "gradient norm by distance", f"distance: {before}", by_distance, x_base=2, y_base=10),
    ]


def smoothed(values: Array) -> Points:
    """Return the points of `values` (N,) at x = 1 to N, averaged over bins. Each point is at the end of its bin.

    Bins end at powers of two and at three points between.
    """
    x = np.arange(1, len(values) + 1, dtype=np.float64)
    _, starts, sizes = np.unique(np.ceil(BINS_PER_OCTAVE * np.log2(x)), return_index=True, return_counts=True)
    means: Array = np.add.reduceat(values, starts) / sizes if len(x) else values
    return x[starts + sizes - 1], means


def band(curves: Iterable[Points]) -> Line:
    """Return the mean of several curves and their range, where all curves have values. Interpolate between points."""
    curves = [(x, y) for x, y in curves if len(x)]
    if not curves:
        return Line(*np.empty((4, 0)))
    x = np.unique(np.concatenate([x for x, _ in curves]))
    x = x[(x >= max(x[0] for x, _ in curves)) & (x <= min(x[-1] for x, _ in curves))]
    y = np.stack([np.interp(x, *curve) for curve in curves])
    return Line(x, y.mean(0), y.min(0), y.max(0))
