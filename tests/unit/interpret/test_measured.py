"""Runs are measured at a checkpoint, and read from metrics that may be damaged."""

import dataclasses
import itertools
from pathlib import Path

import pytest
from forgery import STEPS

from minigpt.errors import UserError
from minigpt.interpret import measured
from minigpt.interpret.measured import load_runs, measure, read_curve
from minigpt.model.device import Runtime
from minigpt.storage.checkpoint import load_checkpoint
from minigpt.storage.runs import best_step, step_folder
from minigpt.text.dataset import reload_dataset

CPU = Runtime("cpu", "float32", False, 1)


def test_the_sampling_throughput_counts_characters_not_tokens(
    finished_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = load_checkpoint(finished_run)
    data = reload_dataset(checkpoint.config.data, checkpoint.metadata.fingerprint, checkpoint.tokenizer)
    halved = dataclasses.replace(data, characters=(len(data.train) + len(data.validation)) // 2)
    ticks = itertools.count()
    monkeypatch.setattr(measured.time, "thread_time", lambda: next(ticks) / 8)
    assert measured._sampling_speed(checkpoint, halved) == pytest.approx(3 * 0.5 / 0.5, rel=0.01)


def test_damaged_lines_of_the_metrics_are_skipped(tmp_path: Path) -> None:
    lines = [
        b'{"step": 0, "time": 0.0, "loss/validation": 4.0, "bits_per_character/validation": 5.8}',
        b'{"step": 3, "time": 0.5, "loss/train": 3.0, "speed/characters_per_second": 900}',
        b'{"step": 4, "time": 1.0, "loss/validation": null, "speed/characters_per_second": 100}',
        b'{"step": 4, "time": 1.0, "loss/validation": "3"}',
        b'{"step": true, "time": 1.0, "loss/validation": 3}',
        b'{"step": 5, "time": NaN, "loss/validation": 3}',
        b'{"step": 5, "time": 1e999, "loss/validation": 3, "x": ' + b"9" * 400 + b"}",
        b"[" * 100_000,
        b'"text"',
        b"\xff\xfe",
        b'{"step": 6, "time": 2, "loss/validation": 2.0, "speed/characters_per_second": 800}',
        b'{"step": 7, "ti',
    ]
    (tmp_path / "metrics.jsonl").write_bytes(b"\n".join(lines))
    curve = read_curve(tmp_path)
    assert (curve.steps.tolist(), curve.seconds.tolist(), curve.loss.tolist()) == ([0, 6], [0, 2], [4, 2])
    assert curve.characters_per_second == 800
    for missing in (None, tmp_path / "nowhere"):
        assert len(read_curve(missing).steps) == 0


def test_a_run_is_measured_as_it_was_trained(finished_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "SAMPLE_SECONDS", 0.01)
    monkeypatch.chdir(finished_run.parent.parent)
    (other,) = (step_folder(Path("runs/r"), step) for step in STEPS if step != best_step(finished_run))
    assert list(load_runs(["r", str(finished_run), "runs/r"])) == ["r"]
    assert list(load_runs(["r", str(other)])) == ["r", str(other)]
    run = measure("r", load_checkpoint("r"), CPU)
    assert run.result.loss == run.metadata.state.best_loss == min(run.curve.loss[1:])
    assert len(run.result.by_position) == len(run.gradient) == 8
    assert (run.gradient > 0).all()
    assert run.sampled_per_second > 1
    rounded = measure("r", load_checkpoint("r"), dataclasses.replace(CPU, dtype="bfloat16"), with_gradient=False)
    assert 0 < abs(rounded.result.loss - run.result.loss) < 0.02
    assert measure("r", load_checkpoint("r"), CPU, with_gradient=False).gradient.size == 0
    with pytest.raises(UserError, match="no run is named"):
        load_runs(["r", "nobody"])
