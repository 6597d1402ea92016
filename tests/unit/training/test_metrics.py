"""What a run tells about itself: each tag has each step once, in TensorBoard and metrics.jsonl, whatever happened."""

import io
import json
import math
import os
import re
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import make_config, make_data
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from minigpt.storage.metadata import TrainState
from minigpt.storage.runs import checkpoint_steps, step_folder
from minigpt.training import metrics as metrics_module
from minigpt.training.loop import Probe, train
from minigpt.training.metrics import Journal, Metrics

ALL = {"scalars": 0, "tensors": 0, "histograms": 0}

pytestmark = pytest.mark.usefixtures("quick_and_clean")


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


def start(run: Path, resume: bool = False, probes: tuple[Probe, ...] = (), **changes: Any) -> TrainState:
    run.mkdir(exist_ok=True)
    checkpoint = step_folder(run, checkpoint_steps(run)[-1]) if resume else None
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
    from minigpt.model.gpt import GPT

    return list(GPT(make_config().model, make_data().tokenizer.vocab_size).named_parameters())


# --- after a kill ------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["none", "cut off"])
def test_after_a_kill_and_a_resume_each_step_is_there_once(tmp_path: Path, damage: str) -> None:
    """Steps 6 to 8 were logged, and stand in event files of TensorBoard, when step 5's checkpoint is resumed."""
    run, killed = tmp_path / "run", tmp_path / "killed"

    def copy(step: int, model: Any, metrics: Metrics) -> None:
        if step == 8:  # nothing is flushed: what was logged must be there all the same
            shutil.copytree(run, killed)

    start(run, probes=(copy,), train__eval_every=8, train__log_every=1)
    assert checkpoint_steps(killed) == [5]
    assert max(step for _, step in line_scalars(killed)) == max(step for _, step in board_scalars(killed)) == 8
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


def test_what_was_logged_is_in_the_files_at_once(tmp_path: Path) -> None:
    """Nothing waits in a buffer for two minutes, as it did, or for a kill to lose it."""
    (tmp_path / "run").mkdir()
    metrics = Metrics(tmp_path / "run", 0, 0, 12)
    metrics.log(1, 0.5, {"a": 0.5})
    metrics.text(1, "sample", "text")
    metrics.histograms(1, {"h": torch.arange(5.0)})
    copy = shutil.copytree(tmp_path / "run", tmp_path / "copy")
    assert line_scalars(copy) == board_scalars(copy) == {("a", 1): 0.5}
    events = board(copy)
    assert events.Tensors("sample/text_summary")[0].tensor_proto.string_val[0] == b"    text"
    assert events.Histograms("h")[0].histogram_value.num == 5
    metrics.close()


# --- clocks ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shift", [-1e6, -5.0, 0.0, 0.3, 1e6])
def test_a_clock_that_was_set_does_no_harm_to_the_curves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shift: float
) -> None:
    """TensorBoard reads files by name: an older name on newer curves hid what a resumed run wrote, for good."""
    began = time.time()
    (tmp_path / "tensorboard").mkdir()
    (tmp_path / "tensorboard/events.out.tfevents.1x.host").touch()  # nobody's, and without a time
    for session, first in enumerate((1, 4, 6, 9)):
        monkeypatch.setattr(time, "time", lambda now=began + session * shift: now)
        with Metrics(tmp_path, first - 1, first - 1, 12) as metrics:
            for step in range(first, first + 5):
                metrics.log(step, 1.0, {"a": float(session)})
    expected = {("a", step): float(sum(step >= first for first in (4, 6, 9))) for step in range(1, 14)}
    assert line_scalars(tmp_path) == expected
    assert board_scalars(tmp_path) == expected
    assert [event.step for event in board(tmp_path).Scalars("a")] == list(range(1, 14))
    assert len(list((tmp_path / "tensorboard").glob("events*.[0-9]*"))) == 4 + 1


# --- a disk that refuses -----------------------------------------------------------------------------

LIMITED = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such limit")


@contextmanager
def full_at(size: int) -> Iterator[None]:
    """A disk that takes files up to `size` bytes and no more. It writes what fits of the last record, as disks do."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@LIMITED
def test_what_the_disk_refuses_is_kept_and_written_later_whole_and_in_order(tmp_path: Path) -> None:
    said: list[str] = []
    path = tmp_path / "j"
    journal = Journal(path, said.append)
    lines = [b"%03d %s\n" % (number, b"x" * 20) for number in range(20)]
    journal.append(lines[0])
    with full_at(60):
        for line in lines[1:9]:
            journal.append(line)
            assert path.read_bytes() in (lines[0], lines[0] + lines[1]), "no part of a record stays"
        journal.sync()
    assert said == [f"cannot write {path}: File too large; training goes on, this is kept in memory"]
    journal.append(lines[9])
    assert path.read_bytes() == b"".join(lines[:10])
    assert said[1:] == [f"{path} is written again; nothing was left out"]
    with full_at(300):  # and a second time
        for line in lines[10:15]:
            journal.append(line)
    journal.sync()  # without anything new
    assert path.read_bytes() == b"".join(lines[:15])
    journal.append(b"".join(lines[15:]))
    journal.close()
    assert path.read_bytes() == b"".join(lines)
    assert len(said) == 4


@LIMITED
def test_what_cannot_be_written_to_the_end_is_counted(tmp_path: Path) -> None:
    said: list[str] = []
    journal = Journal(tmp_path / "j", said.append)
    journal.append(b"kept\n")
    with full_at(7):
        journal.append(b"lost\n")
        journal.append(b"too\n")
        journal.close()
    assert (tmp_path / "j").read_bytes() == b"kept\n"
    assert said[1:] == [f"the last 9 bytes for {tmp_path / 'j'} could not be written and are lost"]


def test_a_flush_that_fails_is_told_and_raises_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    journal = Journal(tmp_path / "j", said.append)

    def failing(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", failing)
        journal.append(b"a\n")
        journal.sync()
        journal.sync()
    assert len(said) == 1
    assert "Input/output error" in said[0]
    journal.append(b"b\n")
    journal.close()
    assert (tmp_path / "j").read_bytes() == b"a\nb\n"


class Failing:
    """An unbuffered file whose disk refuses for a while; it takes a part of many a record first."""

    def __init__(self, file: Any, refuses: Callable[[], bool]) -> None:
        self.file, self.refuses = file, refuses

    def write(self, content: bytes) -> int:
        if not self.refuses():
            return int(self.file.write(content[:40]))
        if len(content) % 2:
            return int(self.file.write(content[:1]))
        raise OSError(28, "No space left on device")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


@pytest.mark.parametrize("lasting", [False, True])
def test_training_goes_on_where_no_curve_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], lasting: bool
) -> None:
    """A failed log line once ended a run of hours."""
    start(tmp_path / "fine")
    weights = (step_folder(tmp_path / "fine", 12) / "model.safetensors").read_bytes()
    evaluated: list[int] = []

    def refuses() -> bool:
        return bool(evaluated) and (evaluated[-1] >= 4 if lasting else evaluated[-1] == 4)

    class FailingJournal(Journal):
        def __init__(self, path: Path, say: Callable[[str], None]) -> None:
            super().__init__(path, say)
            self.file = Failing(self.file, refuses)  # type: ignore[assignment]

    monkeypatch.setattr(metrics_module, "Journal", FailingJournal)
    capsys.readouterr()
    start(tmp_path / "run", probes=(lambda step, model, metrics: evaluated.append(step),))
    assert evaluated == [0, 4, 8, 12]
    assert (step_folder(tmp_path / "run", 12) / "model.safetensors").read_bytes() == weights
    expected = line_scalars(tmp_path / "fine").keys()
    found = line_scalars(tmp_path / "run").keys()
    printed = capsys.readouterr().err
    for name in ("metrics.jsonl", "events.out"):
        assert len(re.findall(rf"^cannot write .*{name}.*: No space left .* training goes on", printed, re.M)) == 1
        assert bool(re.search(rf"the last [\d,]+ bytes for .*{name}.* are lost", printed)) is lasting
    assert board_scalars(tmp_path / "run").keys() == found
    if lasting:
        assert {key for key in expected if key[1] <= 4} == found
        assert "written again" not in printed
    else:
        assert found == expected
        assert printed.count("is written again; nothing was left out") == 2


# --- the terminal ------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def escape(tmp_path: Path, stream: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(sys, "stderr", stream)
    with Metrics(tmp_path, 500, 500, 1000) as metrics:
        metrics.say("a line")
        metrics.progress(750, "loss 1.5")
        metrics.bar.refresh()
        metrics.say("another line")
    return stream.getvalue()


def test_not_a_terminal_gets_plain_lines_and_no_bar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert escape(tmp_path, io.StringIO(), monkeypatch) == "a line\nanother line\n"


def test_a_terminal_gets_a_bar_that_starts_where_a_resumed_run_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted from 0, the steps before the resume made the rest of the run seem short."""
    text = escape(tmp_path, Terminal(), monkeypatch)
    assert "500/1000 steps" in text
    assert " 75%|" in text
    assert re.search(r"750/1000 steps \[[0-9:]+<[0-9:?]+\], loss 1\.5", text)
    assert "a line\n" in text


def test_what_is_said_beside_the_bar_shows_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An evaluation may take minutes, and the bar by itself is drawn again only when the next step is done."""
    monkeypatch.setattr(sys, "stderr", stream := Terminal())
    with Metrics(tmp_path, 0, 0, 1000) as metrics:
        for state in ("loss 1.5", "evaluating"):
            metrics.progress(10, state)
            assert stream.getvalue().rstrip().endswith(f", {state}")
