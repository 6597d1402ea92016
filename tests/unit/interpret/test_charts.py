"""Charts show each point where its axes say, and leave out what they cannot show."""

import io
import warnings
from itertools import pairwise

import numpy as np
import pytest
from matplotlib.axes import Axes
from PIL import Image

from minigpt.interpret.charts import COLORS, Line, Panel, draw
from minigpt.interpret.images import to_png


def line(*y: float, x: tuple[float, ...] = (), spread: float = 0.0) -> Line:
    values = np.array(y)
    return Line(np.array(x or range(1, len(y) + 1), dtype=float), values, values - spread, values + spread)


def drawn(*lines: Line, **settings: object) -> Axes:
    (axes,) = draw([Panel("a", "title", "x", lines, **settings)], ["a run"] * len(lines)).axes  # type: ignore[arg-type]
    return axes


@pytest.mark.parametrize(("x_base", "y_base"), [(None, None), (2, 10)])
def test_each_line_has_its_points_in_its_color(x_base: int | None, y_base: int | None) -> None:
    axes = drawn(line(1000.0, 10.0, 1.0), line(1.0, 10.0, 100.0), x_base=x_base, y_base=y_base)
    assert [shown.get_xydata().tolist() for shown in axes.lines] == [
        [[1, 1000], [2, 10], [3, 1]], [[1, 1], [2, 10], [3, 100]]
    ]  # fmt: skip
    assert [shown.get_color() for shown in axes.lines] == [*COLORS[:2]]
    scale = "log" if x_base else "linear"
    assert (axes.get_title("left"), axes.get_xlabel()) == ("title", "x")
    assert axes.get_xscale() == axes.get_yscale() == scale


def test_a_band_shows_the_range_of_several_runs() -> None:
    (band,) = drawn(line(3.0, 2.0, spread=0.5)).collections
    (path,) = band.get_paths()
    assert (path.vertices[:, 1].min(), path.vertices[:, 1].max()) == (1.5, 3.5)


def test_lines_differ_in_color_or_dashes_and_have_a_label_of_their_color() -> None:
    count = 2 * len(COLORS) + 1
    labels = [f"_name ${n}$" for n in range(count)]
    (axes,) = draw([Panel("a", "t", "x", [line(1.0, 2.0 + n) for n in range(count)])], labels).axes
    styles = [(shown.get_color(), shown.get_linestyle()) for shown in axes.lines]
    assert len({*styles}) == count
    assert [(text.get_text(), text.get_color(), text.get_parse_math()) for text in axes.texts] == [
        (label, color, False) for label, (color, _) in zip(labels, styles, strict=True)
    ]


@pytest.mark.parametrize("y_base", [None, 10])
def test_a_label_is_beside_the_end_of_its_line_in_view(y_base: int | None) -> None:
    lines = line(3.0, 2.0, 1.0), line(3.0, 2.9), line(1.0, 1.0, 1e-30), line(np.nan)
    axes = draw([Panel("a", "t", "x", lines, y_base=y_base)], ["long", "short", "vanishes", "nothing"]).axes[0]
    axes.figure.draw_without_rendering()
    places = {text.get_text(): axes.transData.inverted().transform(axes.transAxes.transform(text.get_position()))
              for text in axes.texts}  # fmt: skip
    assert {*places} == {"long", "short", "vanishes"}
    assert 3 < places["long"][0] < 3.2
    assert 2 < places["short"][0] < 2.2
    assert places["short"][1] == pytest.approx(2.9, rel=0.01 if y_base is None else 0.2)
    assert (places["vanishes"][0] < 2.2) == (y_base == 10)


def test_labels_do_not_overlap() -> None:
    (axes,) = draw([Panel("a", "t", "x", [line(0.0, 2.0)] * 5 + [line(0.0, 3.0)])], [*"abcdef"]).axes
    axes.figure.draw_without_rendering()
    boxes = sorted((text.get_window_extent() for text in axes.texts), key=lambda box: box.y0)
    assert all(below.y1 <= above.y0 for below, above in pairwise(boxes))
    assert boxes[-1].y1 <= axes.bbox.y1 + boxes[-1].height


def test_the_start_of_training_does_not_flatten_the_rest() -> None:
    steep = line(100.0, 3.0, 2.0, x=(0.0, 50.0, 100.0))
    assert drawn(steep).get_ylim()[1] > 100
    assert drawn(steep, ignore_start=True).get_ylim() == pytest.approx((1.95, 3.05))


def test_a_curve_that_vanishes_leaves_the_panel() -> None:
    """A recurrent gradient falls below 1e-18 within 64 tokens, and would press all other curves together."""
    assert drawn(line(1.0, 1e-3), line(1.0, 1e-12), y_base=10).get_ylim() == pytest.approx((1e-6, 2))
    bottom, top = drawn(line(1.0, 1e-3), y_base=10).get_ylim()
    assert top / bottom < 1e4


@pytest.mark.slow
@pytest.mark.parametrize("y_base", [None, 10])
def test_extreme_numbers_and_names_give_a_picture(y_base: int | None) -> None:
    extreme = [(), (5.0,), (np.nan, np.inf), (0.0, -1.0), (2.0, 2.0), (1e-30, 1e30)]
    panels = [Panel("a", "t", "x", [line(*values)], 2, y_base, True) for values in extreme]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = draw(panels, ["漢字"])
        image = to_png(figure)
    assert Image.open(io.BytesIO(image)).size == (1520, 1500)
    assert image == to_png(draw(panels, ["漢字"]))
