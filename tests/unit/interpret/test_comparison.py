"""Runs are grouped by their settings, and ranked only where their losses are of the same text."""

import math
import re
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compared import measured
from forgery import STEPS

from minigpt.errors import CheckpointError
from minigpt.interpret.comparison import Curve, Group, compare, measure, read_curve
from minigpt.model.device import Runtime
from minigpt.storage.checkpoint import load_checkpoint

CPU = Runtime("cpu", "float32", False, 1)


def test_seeds_of_one_setting_share_a_group() -> None:
    losses = [1.5, 1.7, 1.3]
    runs = [measured(f"lstm-{seed}", seed=seed, loss=loss) for seed, loss in enumerate(losses)]
    gpt, lstm = compare([measured("gpt", loss=1.4, n_layer=3), *runs]).groups
    assert (gpt.name, lstm.name) == ("gpt", "lstm-0, lstm-1, lstm-2")
    assert lstm.mean(lambda run: run.result.loss) == pytest.approx(1.5)
    assert lstm.error(lambda run: run.result.loss) == pytest.approx(statistics.stdev(losses) / math.sqrt(3))


def test_the_same_seed_twice_is_no_second_seed() -> None:
    runs = [measured("a-1", seed=1, loss=2.0), measured("a-2", seed=1, loss=1.0), measured("a-3", seed=2)]
    assert [group.name for group in compare(runs).groups] == ["a-2", "a-1, a-3"]


def test_losses_are_ranked_on_one_text() -> None:
    comparison = compare([measured("worse", loss=2.0), measured("better", loss=1.0, n_layer=1)])
    assert [group.name for group in comparison.groups] == ["better", "worse"]
    assert (comparison.is_ranked, comparison.unit, comparison.notes) == (True, "loss", ())
    assert not compare([measured("alone")]).is_ranked


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        ({"fingerprint": "other", "corpus": "b.txt"}, r"\(a: a.txt, .*; b: b.txt, .*\)"),
        ({"val_fraction": 0.2}, r"\(a: .* 0\.1; b: .* 0\.2\)"),
    ],
)
def test_losses_of_different_texts_are_not_ranked(changes: dict[str, Any], note: str) -> None:
    comparison = compare([measured("a", loss=2.0), measured("b", loss=1.0, **changes)])
    assert [group.name for group in comparison.groups] == ["a", "b"]
    assert not comparison.is_ranked
    (only,) = comparison.notes
    assert re.search(f"not ranked.* texts differ {note}", only)


def test_different_tokenizers_are_ranked_by_bits_per_character() -> None:
    """A byte has a lower loss than a character of three bytes."""
    runs = [measured("bytes", loss=1.0, bits=4.0, tokenizer="byte"), measured("chars", loss=2.0, bits=2.9)]
    comparison = compare(runs)
    assert [group.name for group in comparison.groups] == ["chars", "bytes"]
    assert comparison.unit == "bits_per_character"
    assert "tokenizers differ (byte: bytes; char: chars)" in comparison.notes[0]


def test_what_makes_a_comparison_unequal_is_named() -> None:
    runs = [measured("a"), measured("b", context=8, threads=4, dtype="bfloat16"), measured("c", n_layer=1)]
    notes = "\n".join(compare(runs).notes)
    assert "contexts differ (16: a, c; 8: b)" in notes
    assert re.search(r"different amounts of text \([\d,]+ tokens: a, c; [\d,]+ tokens: b\)", notes)
    assert "different precisions (float32: a, c; bfloat16: b)" in notes
    assert "cpu, 4 threads, Z80: b" in notes


def test_damaged_lines_of_the_metrics_are_skipped(tmp_path: Path) -> None:
    lines = [
        b'{"step": 0, "time": 0.0, "split": "validation", "loss": 4.0, "loss/bits_per_character": 5.8}',
        b'{"step": 3, "time": 0.5, "split": "train", "loss": 3.0, "speed/characters_per_second": 900}',
        b'{"step": 4, "time": 1.0, "split": "validation", "loss": null, "speed/characters_per_second": 100}',
        b'{"step": 5, "time": NaN, "split": "validation", "loss": 3}',
        b'{"step": 5, "time": 1e999, "split": "validation", "loss": 3, "x": ' + b"9" * 400 + b"}",
        b'{"step": 5, "time": ' + b"9" * 400 + b', "split": "validation", "loss": 3}',
        b"[" * 100_000,
        b'"text"',
        b"7",
        b"\xff\xfe",
        b'{"step": 6, "time": 2, "split": "validation", "loss": 2.0, "speed/characters_per_second": 800}',
        b'{"step": 7, "ti',
    ]
    (tmp_path / "metrics.jsonl").write_bytes(b"\n".join(lines))
    assert read_curve(tmp_path) == ((0, 6), (0, 2), (4, 2), 900)
    assert read_curve(tmp_path / "nowhere") == ((), (), (), None)


def test_a_run_is_measured_as_it_was_trained(finished_run: Path, tmp_path: Path) -> None:
    checkpoint = load_checkpoint(str(finished_run))
    run = measure("r", checkpoint, CPU)
    assert run.metadata.state.best_loss == min(run.curve.loss[1:])
    assert run.result.loss == pytest.approx(run.metadata.state.best_loss, rel=1e-6)
    assert run.curve.steps == (0, *STEPS)
    speed = run.curve.characters_per_second
    assert speed
    unknown = replace(run, curve=Curve())
    assert Group((run, unknown)).characters_per_second == speed
    assert Group((unknown,)).characters_per_second is None
    rounded = measure("r", checkpoint, Runtime("cpu", "bfloat16", False, 1))
    assert 0 < abs(rounded.result.loss - run.result.loss) < 0.02


def test_a_loss_that_is_not_finite_is_an_error(finished_run: Path) -> None:
    checkpoint = load_checkpoint(str(finished_run))
    weights = {name: np.full_like(weight, np.nan) for name, weight in checkpoint.weights.items()}
    with pytest.raises(CheckpointError, match="r: the loss is nan; an earlier checkpoint may work"):
        measure("r", replace(checkpoint, weights=weights), CPU)
