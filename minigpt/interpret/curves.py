"""The curves of a comparison, as panels of a picture and as scalars of TensorBoard."""

import re
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path

import numpy as np
from torch.utils.tensorboard import SummaryWriter

from minigpt.interpret.charts import Array, Line, Panel
from minigpt.interpret.comparison import Comparison, Group, Measured
from minigpt.paths import EVENTS

Points = tuple[Array, Array]
"""The x and y values of a curve, (N,) each."""
BINS_PER_OCTAVE = 4


def panels(comparison: Comparison, is_smooth: bool = True) -> list[Panel]:
    """Return the four pictures of a comparison: loss by step, time and position, and gradient by distance.

    Positions and distances count from 1. If `is_smooth`, they are averaged over bins.
    """
    unit = "nats" if comparison.unit == "loss" else "bits per character"
    smooth = smoothed if is_smooth else numbered

    def scale(run: Measured) -> float:
        return 1.0 if comparison.unit == "loss" else run.bits_per_nat

    def lines(points: Callable[[Measured], Points]) -> list[Line]:
        return [band([points(run) for run in group.runs]) for group in comparison.groups]

    by_step = lines(lambda run: (run.curve.steps, run.curve.loss * scale(run)))
    longest = max(run.curve.seconds.max(initial=0.0) for group in comparison.groups for run in group.runs)
    minute, clock = (60.0, "minutes") if is_smooth and longest > 180 else (1.0, "s")
    by_time = lines(lambda run: (run.curve.seconds / minute, run.curve.loss * scale(run)))
    by_position = lines(lambda run: smooth(np.array(run.result.by_position) * scale(run)))
    by_distance = lines(lambda run: smooth(run.gradient))
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


def numbered(values: Array) -> Points:
    """Return the points of `values` (N,) at x = 1 to N."""
    x: Array = np.arange(1, len(values) + 1, dtype=np.float64)
    return x, values


def smoothed(values: Array) -> Points:
    """Return the points of `values` (N,) at x = 1 to N, averaged over bins. Each point is at the end of its bin.

    Bins end at powers of two and at three points between.
    """
    x, _ = numbered(values)
    _, starts, sizes = np.unique(np.ceil(BINS_PER_OCTAVE * np.log2(x)), return_index=True, return_counts=True)
    means: Array = np.add.reduceat(values, starts) / sizes if len(x) else values
    return x[starts + sizes - 1], means


def band(curves: Iterable[Points]) -> Line:
    """Return the mean of several curves and their range, where all of them have values. Interpolate between points."""
    curves = [(x, y) for x, y in curves if len(x)]
    if not curves:
        return Line(*np.empty((4, 0)))
    x = np.unique(np.concatenate([x for x, _ in curves]))
    x = x[(x >= max(x[0] for x, _ in curves)) & (x <= min(x[-1] for x, _ in curves))]
    y = np.stack([np.interp(x, *curve) for curve in curves])
    return Line(x, y.mean(0), y.min(0), y.max(0))


def write_tensorboard(comparison: Comparison, folder: Path) -> None:
    """Write the curves below `folder`, where TensorBoard shows each group as a run, and overlays them.

    Several seeds also become NAME/lowest and NAME/highest. TensorBoard's step is the step, second, position or
    distance. An earlier comparison in this folder is removed.
    """
    for name in ("*", "*/lowest", "*/highest"):
        for old in folder.glob(f"{name}/{EVENTS}*"):
            old.unlink()
    charts = panels(comparison, is_smooth=False)
    for index, group in enumerate(comparison.groups):
        for name in ("", "lowest", "highest") if len(group.runs) > 1 else ("",):
            place = folder / folder_name(group) / name
            with closing(SummaryWriter(str(place))) as board:
                for panel in charts:
                    line = panel.lines[index]
                    y, title = {"": line.y, "lowest": line.low, "highest": line.high}[name], panel.title
                    if panel.y_base:  # TensorBoard's axes are linear at first
                        y, title = np.log10(np.where(y > 0, y, np.nan)), f"{title}, log10"
                    points = dict(zip(np.rint(line.x).astype(int).tolist(), y, strict=True))
                    for step, value in points.items():
                        if np.isfinite(value):
                            board.add_scalar(f"compare/{title}", value, step)


def folder_name(group: Group) -> str:
    """Return a name for the folder of a group, without separators."""
    return re.sub(r"[^\w+., -]", "-", group.label).strip(". ") or "run"
