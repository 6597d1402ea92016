"""Charts put each point where its axes say, and leave out what they cannot show."""

import io

import numpy as np
import pytest
from PIL import Image, ImageColor

from minigpt.interpret import charts
from minigpt.interpret.charts import BOTTOM, COLORS, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Axis, Line, Panel, draw
from minigpt.interpret.images import to_png


def line(*y: float, x: tuple[float, ...] = (), spread: float = 0.0) -> Line:
    values = np.array(y)
    return Line(np.array(x or range(1, len(y) + 1), dtype=float), values, values - spread, values + spread)


def pixels(image: Image.Image, index: int) -> np.ndarray:
    """Return the (y, x) of the pixels of a panel that have the color of a line."""
    color = np.array(ImageColor.getrgb(COLORS[index]))
    return np.argwhere((np.abs(np.asarray(image).astype(int) - color).max(-1) < 40)[: HEIGHT - BOTTOM])


@pytest.mark.parametrize(("x_base", "y_base"), [(None, None), (2, 10)])
def test_lines_pass_through_their_points(x_base: int | None, y_base: int | None) -> None:
    """The extremes of a falling line are in the corners, also on logarithmic axes."""
    panel = Panel("a", "title", "x", [line(1000.0, 10.0, 1.0), line(1.0, 10.0, 1000.0)], x_base, y_base)
    image = draw([panel], ["falls", "rises"])
    for index, at_left in ((0, TOP), (1, HEIGHT - BOTTOM)):
        found = pixels(image, index)
        leftmost = found[found[:, 1] < LEFT + 4]
        assert abs(leftmost[:, 0].mean() - at_left) < 0.06 * HEIGHT
    share_x, share_y = (np.log2(2) / np.log2(3), 1 / 3) if x_base else (1 / 2, 9 / 999)
    middle = [HEIGHT - BOTTOM - share_y * (HEIGHT - BOTTOM - TOP), LEFT + share_x * (WIDTH - RIGHT - LEFT)]
    assert np.abs(pixels(image, 1) - middle).sum(1).min() < 0.06 * HEIGHT


def test_a_band_is_drawn_only_for_several_runs() -> None:
    shaded = [draw([Panel("a", "t", "x", [line(3.0, 2.0, spread=spread)])], ["a"]) for spread in (0.0, 0.5)]
    light = [(np.abs(np.asarray(image).astype(int) - [204, 227, 240]).max(-1) < 8).sum() for image in shaded]
    assert light[0] < 500 < 10_000 < light[1]


def test_lines_differ_in_color_or_width() -> None:
    ink = []
    for at in (0, len(COLORS)):
        image = draw([Panel("a", "t", "x", [line()] * at + [line(1.0, 2.0)])], ["a"])
        ink.append((255 - np.asarray(image).astype(int))[TOP + 5 : HEIGHT - BOTTOM - 5, WIDTH // 2].sum())
    assert 0.4 < ink[1] / ink[0] < 0.8


def test_the_start_of_training_does_not_flatten_the_rest() -> None:
    steep = line(100.0, 3.0, 2.0, x=(0.0, 50.0, 100.0))
    height = {}
    for ignore_start in (False, True):
        found = pixels(draw([Panel("a", "t", "x", [steep], ignore_start=ignore_start)], ["a"]), 0)
        height[ignore_start] = np.ptp(found[found[:, 1] > WIDTH / 2 + 40][:, 0])
    assert height[False] < 20 < 100 < height[True]


def test_a_curve_that_vanishes_leaves_the_panel() -> None:
    """A recurrent gradient falls below 1e-18 within 64 tokens, and would press all other curves together."""
    image = draw([Panel("a", "t", "x", [line(1.0, 1e-3), line(1.0, 1e-12)], y_base=10)], ["a", "b"])
    slow, fast = pixels(image, 0), pixels(image, 1)
    assert np.ptp(slow[:, 0]) == pytest.approx((HEIGHT - BOTTOM - TOP) / 2, rel=0.05)
    assert fast[:, 1].max() == pytest.approx((LEFT + WIDTH - RIGHT) / 2, rel=0.05)


@pytest.mark.parametrize("y_base", [None, 10])
def test_extreme_numbers_give_a_picture(y_base: int | None) -> None:
    extreme = [(), (5.0,), (np.nan, np.inf), (0.0, -1.0), (2.0, 2.0), (1e-30, 1e30)]
    image = draw([Panel("a", "t", "x", [line(*values)], 2, y_base, True) for values in extreme], ["漢字"])
    assert image.width == 2 * WIDTH
    assert 3 * HEIGHT < image.height < 3.3 * HEIGHT
    assert to_png(image) == to_png(Image.open(io.BytesIO(to_png(image))))


def test_a_long_legend_has_several_rows() -> None:
    panel = Panel("a", "t", "x", [line(1.0, 2.0)] * 12)
    assert draw([panel], ["a long name of a run"] * 12).height >= HEIGHT + 4 * charts.LINE


def test_ticks_are_round_and_within_the_range() -> None:
    assert Axis(0, 300, 0, 1, None).ticks() == [0, 50, 100, 150, 200, 250, 300]
    assert Axis(1.84, 2.51, 0, 1, None).ticks() == pytest.approx([1.9, 2.0, 2.1, 2.2, 2.3, 2.4, 2.5])
    assert Axis(1, 128, 0, 1, 2).ticks() == [1, 2, 4, 8, 16, 32, 64, 128]
    assert Axis(1, 100, 0, 1, 2).ticks() == [1, 2, 4, 8, 16, 32, 64]
    assert Axis(0.08, 4, 0, 1, 10).ticks() == pytest.approx([0.1, 0.2, 0.5, 1, 2])
    assert Axis(1e-30, 1, 0, 1, 10).ticks() == pytest.approx([1e-28, 1e-24, 1e-20, 1e-16, 1e-12, 1e-8, 1e-4, 1])
