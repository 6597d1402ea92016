"""The plot of a comparison shows the losses of each run by time."""

from itertools import pairwise

import numpy as np
import pytest
from compared import measured
from matplotlib.axes import Axes

from minigpt.interpret.charts import COLORS, draw
from minigpt.interpret.comparison import Measured, compare


def drawn(*runs: Measured) -> Axes:
    (axes,) = draw(compare(runs)).axes
    return axes


def test_each_run_has_a_line_in_the_color_of_its_group_with_its_name() -> None:
    axes = drawn(
        measured("b", loss=2.0, n_layer=1), measured("a-1", loss=1.0, seed=1), measured("a-2", loss=1.5, seed=2)
    )
    assert [line.get_color() for line in axes.lines] == [COLORS[0], COLORS[0], COLORS[1]]
    assert [line.get_ydata()[-1] for line in axes.lines] == [1.0, 1.5, 2.0]
    assert [text.get_text() for text in axes.texts] == ["a-1", "a-2", "b"]
    assert axes.texts[2].xy == (8, 2.0)
    heights = [text.xy[1] for text in drawn(*(measured(f"{n}", n_layer=n, loss=1.0) for n in (1, 2, 3))).texts]
    assert [b - a > 0.1 for a, b in pairwise(heights)] == [True, True], "labels of equal losses do not overlap"
    assert axes.get_xlabel() == "training time (s)"


def test_long_runs_are_shown_in_minutes() -> None:
    axes = drawn(measured("a", steps=(0, 300)))
    assert axes.get_xlabel() == "training time (minutes)"
    assert axes.lines[0].get_xdata().tolist() == [0, 5]


def test_different_tokenizers_are_shown_in_bits() -> None:
    axes = drawn(measured("chars", loss=1.0, bits=3.0), measured("bytes", loss=1.0, bits=2.0, tokenizer="byte"))
    assert [line.get_ydata()[-1] for line in axes.lines] == [2.0, 3.0]
    assert "bits per character" in axes.get_title("left")


def test_the_start_of_a_curve_does_not_set_the_scale() -> None:
    axes = drawn(measured("a", loss=1.0, steps=(0, 1, 4, 8)))
    assert axes.get_ylim() == pytest.approx((1.0 - 0.35, 8.0 + 0.35))


def test_runs_without_curves_or_with_a_loss_of_zero_are_drawn() -> None:
    assert not drawn(measured("imported", steps=())).lines
    axes = drawn(measured("one letter", loss=0.0, bits=0.0), measured("bytes", tokenizer="byte"))
    assert all(np.isfinite(line.get_ydata()).all() for line in axes.lines)
