"""What a run tells about itself: each tag has each step once, in TensorBoard and metrics.jsonl, whatever happened."""

import io
import json
import math
import shutil
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from test_train import _quick_and_clean, make_config, make_data  # noqa: F401 - a fixture

from minigpt.checkpoint import TrainState
from minigpt.metrics import Metrics
from minigpt.runs import checkpoint_steps, step_folder
from minigpt.train import Probe, train

ALL = {"scalars": 0, "tensors": 0, "histograms": 0}


def board(run: Path) -> EventAccumulator:
    """TensorBoard's own reading of a run; a run of its own for each folder with event files, of which there is one."""
    folders = {file.parent for file in (run / "tensorboard").rglob("*tfevents*")}
    assert folders == {run / "tensorboard"}
    return EventAccumulator(str(run / "tensorboard"), size_guidance=ALL).Reload()


def board_scalars(run: Path) -> dict[tuple[str, int], float]:
    """Every scalar by tag and step; a tag with the same step twice fails."""
    events = board(run)
    points = [(tag, event.step, event.value) for tag in events.Tags()["scalars"] for event in events.Scalars(tag)]
    assert max(Counter((tag, step) for tag, step, _ in points).values()) == 1
    return {(tag, step): value for tag, step, value in points}


def line_scalars(run: Path) -> dict[tuple[str, int], float]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [line["step"] for line in lines] == sorted(line["step"] for line in lines)
    points = [
        (tag, line["step"], value) for line in lines for tag, value in line.items() if tag not in ("step", "time")
    ]
    assert max(Counter((tag, step) for tag, step, _ in points).values()) == 1
    return {(tag, step): value for tag, step, value in points}


def next_second() -> None:
    """TensorBoard orders event files by the second of their creation; real processes take longer to start."""
    time.sleep(1.01 - time.time() % 1)


def start(run: Path, resume: bool = False, probes: tuple[Probe, ...] = (), **changes: Any) -> TrainState:
    run.mkdir(exist_ok=True)
    checkpoint = step_folder(run, checkpoint_steps(run)[-1]) if resume else None
    if resume:
        next_second()
    return train(make_config(**changes), run, make_data(), resume=checkpoint, probes=probes).state


# --- what is there -----------------------------------------------------------------------------------


def test_a_run_has_every_curve_in_both_places_with_the_same_numbers(tmp_path: Path) -> None:
    start(tmp_path)
    expected, found = line_scalars(tmp_path), board_scalars(tmp_path)
    assert expected.keys() == found.keys()
    for key, value in expected.items():
        assert found[key] == pytest.approx(value, rel=1e-6), key
    steps: dict[str, list[int]] = {}
    for tag, step in expected:
        steps.setdefault(tag, []).append(step)
    logged = ["loss/train", "optimizer/learning_rate", "optimizer/muon_learning_rate", "optimizer/gradient_norm"]
    logged += ["optimizer/clipped_share", "speed/characters_per_second", "speed/flops", "speed/share_of_matmul"]
    logged += ["time/seconds", "memory/bytes"] if sys.platform != "win32" else ["time/seconds"]
    evaluated = ["loss/validation", "bits_per_character/validation"]
    assert steps == {tag: [0, 4, 8, 12] if tag in evaluated else [3, 6, 9, 12] for tag in (*logged, *evaluated)}
    bits = {step: value for (tag, step), value in expected.items() if tag == "bits_per_character/validation"}
    assert all(bits[s] == pytest.approx(expected["loss/validation", s] / math.log(2)) for s in bits)
    share = expected["speed/flops", 12] / 1e9  # what the fixture says this machine can do
    assert expected["speed/share_of_matmul", 12] == pytest.approx(share)


def test_both_losses_stand_in_one_chart(tmp_path: Path) -> None:
    start(tmp_path, train__steps=1)
    (layout,) = board(tmp_path).Tensors("custom_scalars__config__")
    stored = layout.tensor_proto.string_val[0]
    assert b"loss/train" in stored
    assert b"loss/validation" in stored


def test_texts_histograms_and_settings_are_written_where_asked_for(tmp_path: Path) -> None:
    def sample(step: int, model: Any, metrics: Metrics) -> None:
        metrics.text(step, "sample", f"# step {step}\n*as it is*")

    start(tmp_path / "plain", train__steps=4)
    tags = board(tmp_path / "plain").Tags()
    assert tags["histograms"] == []
    assert tags["tensors"] == ["custom_scalars__config__"]

    run = tmp_path / "all"
    start(run, probes=(sample,), train__steps=4, train__histograms=True, train__hparams=True)
    start(run, resume=True, probes=(sample,), train__steps=8, train__histograms=True, train__hparams=True)
    events = board(run)
    names = [name for name, _ in make_model_parameters()]
    assert set(events.Tags()["histograms"]) == {f"{kind}/{name}" for kind in ("weights", "gradients") for name in names}
    for name in names:
        assert [event.step for event in events.Histograms(f"weights/{name}")] == [0, 4, 8]
        assert [event.step for event in events.Histograms(f"gradients/{name}")] == [4, 8]
    samples = events.Tensors("sample/text_summary")
    assert [event.step for event in samples] == [0, 4, 8]
    assert samples[1].tensor_proto.string_val[0] == b"    # step 4\n    *as it is*"
    best = board_scalars(run)["hparam/best_validation_loss", 8]
    assert best == pytest.approx(
        min(v for (tag, step), v in line_scalars(run).items() if tag == "loss/validation" and step)
    )


def make_model_parameters() -> list[tuple[str, torch.nn.Parameter]]:
    from minigpt.model import GPT

    return list(GPT(make_config().model, make_data().tokenizer.vocab_size).named_parameters())


# --- after a kill ------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["none", "cut off", "nothing flushed"])
def test_after_a_kill_and_a_resume_each_step_is_there_once(tmp_path: Path, damage: str) -> None:
    """Steps 6 to 8 were logged, and stand in event files of TensorBoard, when step 5's checkpoint is resumed."""
    run, killed = tmp_path / "run", tmp_path / "killed"

    def copy(step: int, model: Any, metrics: Metrics) -> None:
        if step == 8:
            if damage != "nothing flushed":
                metrics.flush()
            shutil.copytree(run, killed)

    start(run, probes=(copy,), train__eval_every=8, train__log_every=1)
    assert checkpoint_steps(killed) == [5]
    if damage == "cut off":
        (events,) = (killed / "tensorboard").iterdir()
        for path in (killed / "metrics.jsonl", events):
            path.write_bytes(path.read_bytes()[:-9])
    start(killed, resume=True, train__eval_every=8, train__log_every=1)
    assert line_scalars(killed).keys() == line_scalars(run).keys()
    assert board_scalars(killed).keys() == board_scalars(run).keys()
    for (tag, step), value in line_scalars(killed).items():
        assert board_scalars(killed)[tag, step] == pytest.approx(value, rel=1e-6)


def test_a_run_killed_after_a_resume_at_step_0_has_each_step_once(tmp_path: Path) -> None:
    """Step 0 was taken for a new run, of which there is nothing to take back."""
    for time_of_death in (7, 9):
        with Metrics(tmp_path, 0, 0, 12) as metrics:
            for step in range(1, time_of_death):
                metrics.log(step, 1.0, {"loss/train": float(time_of_death)})
        next_second()
    assert board_scalars(tmp_path) == line_scalars(tmp_path) == {("loss/train", step): 9.0 for step in range(1, 9)}
    assert len(board(tmp_path).Tensors("custom_scalars__config__")) == 1


@pytest.mark.parametrize(
    ("content", "kept"),
    [
        (b"", 0),
        (b'{"step": 1}\n{"step": 5}\n{"step": 5}\n', 3),
        (b'{"step": 1}\n{"step": 6}\n{"step": 7}\n', 1),
        (b'{"step": 6}\n', 0),
        (b'{"step": 1}\n{"step": 5}', 1),
        (b'{"step": 1}\n{"st', 1),
        (b'{"step": 1}\n\x00\x00\x00\x00', 1),
        (b'{"step": 1}\n\xff\xfe\n[]\n{}\n7\n\n', 1),
    ],
)
def test_the_lines_after_a_step_and_damaged_ones_at_the_end_are_cut_off(
    tmp_path: Path, content: bytes, kept: int
) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(content)
    with Metrics(tmp_path, 5, 5, 12) as metrics:
        metrics.log(6, 1.0, {"a": 0.5})
    lines = (tmp_path / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    assert lines == [*content.splitlines(keepends=True)[:kept], b'{"step": 6, "time": 1.0, "a": 0.5}\n']


def test_what_json_cannot_say_is_null(tmp_path: Path) -> None:
    with Metrics(tmp_path, 0, 0, 12) as metrics:
        metrics.log(1, 0.0, {"a": math.nan, "b": math.inf, "c": -math.inf, "d": 1.5})
    line = (tmp_path / "metrics.jsonl").read_text(encoding="utf-8")
    assert line == '{"step": 1, "time": 0.0, "a": null, "b": null, "c": null, "d": 1.5}\n'


# --- the terminal ------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(tmp_path: Path, stream: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(sys, "stderr", stream)
    with Metrics(tmp_path, 500, 500, 1000) as metrics:
        metrics.say("a line")
        metrics.progress(750, "loss 1.5")
        metrics.bar.refresh()
        metrics.say("another line")
    return stream.getvalue()


def test_not_a_terminal_gets_plain_lines_and_no_bar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(tmp_path, io.StringIO(), monkeypatch) == "a line\nanother line\n"


def test_a_terminal_gets_a_bar_that_starts_where_a_resumed_run_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted from 0, the steps before the resume made the rest of the run seem short."""
    text = shown(tmp_path, Terminal(), monkeypatch)
    assert "500/1000 steps" in text
    assert " 75%|" in text
    assert "750/1000 steps, loss 1.5 [" in text
    assert "a line\n" in text
