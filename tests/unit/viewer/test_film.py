"""Which moments of a run the page shows."""

import json
from pathlib import Path

import numpy as np
import torch

from minigpt.viewer.film import POINTS, choose_moments, loss_curve, most_moments


def test_moments_around_an_event_are_chosen() -> None:
    """One of 40 letters is learned between moments 11 and 12; the others only change at random."""
    noise = torch.rand(20, 40, generator=torch.Generator().manual_seed(1)) * 0.3
    noise[:, 7] = torch.where(torch.arange(20) < 12, 0.1, 0.9)
    chosen = choose_moments(list(noise), 6, opened=3)
    assert len(chosen) == 6
    assert chosen == sorted(chosen)
    assert {0, 3, 11, 12, 19} <= {*chosen}


def test_one_letter_that_is_learned_counts_more_than_many_that_drift() -> None:
    """By squares, the drift of 40 letters between moments 3 and 4 would count twice as much as the learned letter."""
    chances = torch.full((6, 41), 0.1)
    chances[2:, 0] = 0.9
    chances[4:, 1:] = 0.3
    assert choose_moments(list(chances), 4, opened=0) == [0, 1, 2, 5]


def test_a_short_film_is_whole() -> None:
    assert choose_moments([torch.rand(5)] * 3, 12, opened=2) == [0, 1, 2]
    assert choose_moments([torch.rand(5)] * 9, 2, opened=0) == [0, 8]
    assert choose_moments([torch.rand(5)] * 9, 3, opened=4) == [0, 4, 8]
    assert choose_moments([torch.rand(5)] * 9, 2, opened=4) == [4], (
        "the opened moment, the first and the last are three"
    )


def test_other_models_leave_less_room() -> None:
    small, large = ({"w": np.zeros((1000, size), np.float32)} for size in (100, 4000))
    assert most_moments(small, []) == 12
    assert most_moments(large, []) == 2
    assert most_moments(large, [small]) == most_moments(large, [large]) + 1 == 2
    assert most_moments(small, [large] * 3) < 2


def test_the_curve_of_the_loss_is_dense_at_the_start(tmp_path: Path) -> None:
    lines = [{"step": step, "split": "train", "loss": 1 / step} for step in range(1, 5001)]
    lines[30] = {"step": 31, "split": "train", "loss": float("nan")}
    lines.append({"step": -5, "split": "train", "loss": 1.0})
    text = "\n".join(map(json.dumps, lines)) + '\n{"step": 5001, "lo'
    (tmp_path / "metrics.jsonl").write_text(text, encoding="utf-8")
    curve = loss_curve(tmp_path)
    steps = [step for step, _ in curve]
    assert len(curve) <= POINTS
    assert steps == sorted(steps)
    assert 0 <= steps[0] <= 2
    assert curve[-1] == (5000, 0.0002)
    assert 31 not in steps
    assert sum(step <= 500 for step in steps) > POINTS / 4
    assert loss_curve(tmp_path / "none") == []


def test_a_run_that_ended_before_its_first_log_line_has_one_loss(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 0, "split": "validation", "loss": 4.5}\n', encoding="utf-8")
    assert loss_curve(tmp_path) == [(0, 4.5)]
