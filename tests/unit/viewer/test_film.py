"""Which moments of a run the page shows."""

import json
from pathlib import Path

import torch

from minigpt.viewer.film import POINTS, choose_moments, loss_curve


def test_moments_around_an_event_are_chosen() -> None:
    """One of 40 letters is learned between moments 11 and 12; the others only change at random."""
    noise = torch.rand(20, 40, generator=torch.Generator().manual_seed(1)) * 0.3
    noise[:, 7] = torch.where(torch.arange(20) < 12, 0.1, 0.9)
    chosen = choose_moments(list(noise), 6, opened=3)
    assert len(chosen) == 6
    assert chosen == sorted(chosen)
    assert {0, 3, 11, 12, 19} <= {*chosen}


def test_a_short_film_is_whole() -> None:
    assert choose_moments([torch.rand(5)] * 3, 12, opened=2) == [0, 1, 2]
    assert choose_moments([torch.rand(5)] * 3, 2, opened=1) == [0, 1, 2], "what the page opens with is never left out"
    assert choose_moments([torch.rand(5)] * 9, 2, opened=0) == [0, 8]


def test_the_curve_of_the_loss_is_dense_at_the_start(tmp_path: Path) -> None:
    lines = [{"step": step, "loss/train": 1 / step} for step in range(1, 5001)]
    lines[30] = {"step": 31, "loss/train": float("nan")}
    text = "\n".join(map(json.dumps, lines)) + '\n{"step": 5001, "loss/val'
    (tmp_path / "metrics.jsonl").write_text(text, encoding="utf-8")
    curve = loss_curve(tmp_path)
    steps = [step for step, _ in curve]
    assert len(curve) <= POINTS + 1
    assert steps == sorted(steps)
    assert steps[0] <= 2
    assert curve[-1] == (5000, 0.0002)
    assert 31 not in steps
    assert sum(step <= 500 for step in steps) > POINTS / 4
    assert loss_curve(tmp_path / "none") == []
