"""Curves of several seeds become their mean and range."""

import numpy as np
import pytest
from compared import measured

from minigpt.interpret.comparison import compare
from minigpt.interpret.curves import band, panels, smoothed


def test_bins_end_at_powers_of_two_and_hold_each_value_once() -> None:
    values = np.arange(1.0, 65)
    x, y = smoothed(values)
    assert x[:6].tolist() == [1, 2, 3, 4, 5, 6]
    assert x[-5:].tolist() == [32, 38, 45, 53, 64]
    assert y[-1] == np.arange(54, 65).mean()
    sizes = np.diff([0, *x])
    assert (y * sizes).sum() == pytest.approx(values.sum())
    assert all(part.size == 0 for part in smoothed(np.empty(0)))


def test_a_band_covers_the_steps_that_all_seeds_have() -> None:
    one, two = (np.array([0.0, 10.0]), np.array([4.0, 2.0])), (np.array([0.0, 5.0, 8.0]), np.array([2.0, 1.0, 1.0]))
    line = band([one, two, (np.empty(0), np.empty(0))])
    assert line.x.tolist() == [0, 5, 8]
    assert line.y.tolist() == pytest.approx([3.0, 2.0, 1.7])
    assert line.low.tolist() == pytest.approx([2.0, 1.0, 1.0])
    assert line.high.tolist() == pytest.approx([4.0, 3.0, 2.4])
    assert band([]).x.size == 0


def test_each_panel_has_the_curve_of_its_axis() -> None:
    found = compare([measured("a", loss=1.0, seed=1), measured("a2", loss=2.0, seed=2)])
    steps, time, position, distance = panels(found)
    assert steps.lines[0].y.tolist() == time.lines[0].y.tolist() == [9.5, 5.5, 1.5]
    assert (position.lines[0].x.tolist(), position.lines[0].y.tolist()) == ([1, 2, 3], [3, 2, 1])
    assert distance.lines[0].y[0] == 1
    assert "(s)" in time.title
    long = [measured(name, tokenizer=name, bits=3.0, steps=(0, 300)) for name in ("char", "byte")]
    steps, time, position, _ = panels(compare(long))
    assert time.lines[0].x.tolist() == [0, 5]
    assert time.lines[0].y.tolist() == steps.lines[0].y.tolist() == pytest.approx([2 * 9.5, 2 * -290.5])
    assert "minutes" in time.title
    assert "bits per character" in steps.title
    assert position.lines[0].y.tolist() == pytest.approx([6.0, 4.0, 2.0])  # twice as many bits as nats


def test_a_loss_of_zero_has_no_curve_in_another_unit() -> None:
    zero = [measured("one letter", loss=0.0, bits=0.0), measured("bytes", tokenizer="byte")]
    for panel in panels(compare(zero))[:3]:
        assert [bool(np.isfinite(line.y).any()) for line in panel.lines] == [False, True]
