"""Curves: each tag has each step once, in TensorBoard and in metrics.jsonl, whatever happens to the run."""

import io
import itertools
import json
import math
import re
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from small_runs import make_config, make_data
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams.metadata import SESSION_START_INFO_TAG
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
from tensorboard.summary.writer import event_file_writer

from minigpt.storage.checkpoint import load_checkpoint
from minigpt.storage.metadata import TrainState
from minigpt.storage.runs import checkpoint_steps, step_folder
from minigpt.training.loop import Probe, train
from minigpt.training.metrics import Metrics

ALL = {"scalars": 0, "tensors": 0, "histograms": 0, "images": 0}
pytestmark = pytest.mark.usefixtures("torch_settings")


@pytest.fixture(autouse=True)
def event_files_of_different_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorBoard orders event files by the second in their names. Real runs never start twice in one second."""
    seconds = itertools.count(int(time.time()))
    monkeypatch.setattr(event_file_writer, "time", SimpleNamespace(time=lambda: next(seconds)))


Scalars = dict[tuple[str, str, int], float]
"""Values by split, tag and step."""


def board(run: Path, split: str) -> EventAccumulator:
    """Read the TensorBoard run of a split as TensorBoard does."""
    folder = run / "tensorboard"
    assert {file.parent for file in run.rglob("*tfevents*")} == {folder / "train", folder / "validation"}
    return EventAccumulator(str(folder / split), size_guidance=ALL).Reload()


def board_scalars(run: Path) -> Scalars:
    points = []
    for split in ("train", "validation"):
        events = board(run, split)
        points += [((split, tag, e.step), e.value) for tag in events.Tags()["scalars"] for e in events.Scalars(tag)]
    assert max(Counter(place for place, _ in points).values()) == 1
    return dict(points)


def line_scalars(run: Path) -> Scalars:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [line["step"] for line in lines] == sorted(line["step"] for line in lines)
    known = ("step", "time", "split")
    points = [((line["split"], tag, line["step"]), line[tag]) for line in lines for tag in line if tag not in known]
    assert max(Counter(place for place, _ in points).values()) == 1
    return dict(points)


def start(run: Path, resume: bool = False, probes: tuple[Probe, ...] = (), **changes: Any) -> TrainState:
    run.mkdir(exist_ok=True)
    checkpoint = load_checkpoint(step_folder(run, checkpoint_steps(run)[-1])) if resume else None
    return train(make_config(**changes), run, make_data(), resume=checkpoint, probes=probes).state


def test_a_run_has_every_curve_in_both_places_with_the_same_numbers(tmp_path: Path) -> None:
    start(tmp_path)
    expected, found = line_scalars(tmp_path), board_scalars(tmp_path)
    assert found == pytest.approx(expected, rel=1e-6)
    steps: dict[str, dict[str, list[int]]] = {"train": {}, "validation": {}}
    for split, tag, step in expected:
        steps[split].setdefault(tag, []).append(step)
    assert steps["validation"] == {"loss": [0, 4, 8, 12], "loss/bits_per_character": [0, 4, 8, 12]}
    assert {"loss", "optimizer/learning_rate", "speed/characters_per_second"} <= steps["train"].keys()
    assert all(at == [3, 6, 9, 12] for at in steps["train"].values())
    bits = [expected["validation", "loss/bits_per_character", step] for step in (0, 12)]
    assert bits == pytest.approx([expected["validation", "loss", step] / math.log(2) for step in (0, 12)])


def test_tensorboard_has_the_settings_of_a_run_beside_its_validation_loss(tmp_path: Path) -> None:
    start(tmp_path, model__n_embd=32)
    contents = board(tmp_path, "validation").PluginTagToContent("hparams")
    hparams = HParamsPluginData.FromString(contents[SESSION_START_INFO_TAG]).session_start_info.hparams
    assert (hparams["model.n_embd"].number_value, hparams["optim.name"].string_value) == (32, "normuon")
    assert "runtime.threads" not in hparams


def test_a_recurrent_run_has_the_curves_of_a_transformer(tmp_path: Path) -> None:
    for family, settings in {"modern": {}, "lstm": {"model__n_head": 1}}.items():
        start(tmp_path / family, model__family=family, **settings)
    modern, lstm = (board_scalars(tmp_path / family).keys() for family in ("modern", "lstm"))
    assert lstm == modern


def test_texts_are_written_if_asked_for(tmp_path: Path) -> None:
    def probe(step: int, model: Any, metrics: Metrics) -> None:
        metrics.sample(step, f"step {step}\nof a run")

    start(tmp_path, probes=(probe,), train__steps=4)
    start(tmp_path, resume=True, probes=(probe,), train__steps=8)
    samples = board(tmp_path, "validation").Tensors("sample/text_summary")
    assert [event.step for event in samples] == [0, 4, 8]
    assert samples[1].tensor_proto.string_val[0] == b"    step 4\n    of a run"
    kept = (tmp_path / "log.txt").read_text(encoding="utf-8")
    assert re.findall(r"^    step (\d)\n    of a run$", kept, re.MULTILINE) == ["0", "4", "8"]
    assert re.findall(r"^--- .*, step (\d)$", kept, re.MULTILINE) == ["0", "4"]
    assert kept.count("validation") == 3


@pytest.mark.parametrize("damage", ["none", "cut off"])
def test_after_a_kill_and_a_resume_each_step_is_there_once(tmp_path: Path, damage: str) -> None:
    """Steps 6 to 8 are logged when the run is killed and resumed from step 5."""
    run, killed = tmp_path / "run", tmp_path / "killed"

    def copy(step: int, model: Any, metrics: Metrics) -> None:
        if step == 8:
            metrics.flush()
            shutil.copytree(run, killed)

    start(run, probes=(copy,), train__eval_every=8, train__log_every=1)
    assert checkpoint_steps(killed) == [0, 5]
    assert max(step for *_, step in line_scalars(killed)) == max(step for *_, step in board_scalars(killed)) == 8
    if damage == "cut off":
        for path in (killed / "metrics.jsonl", *killed.rglob("*tfevents*")):
            path.write_bytes(path.read_bytes()[:-9])
    start(killed, resume=True, train__eval_every=8, train__log_every=1)
    assert line_scalars(killed).keys() == line_scalars(run).keys()
    assert board_scalars(killed).keys() == board_scalars(run).keys()


def test_a_run_resumed_at_step_0_has_each_step_once(tmp_path: Path) -> None:
    for last in (7, 9):
        with Metrics(tmp_path) as metrics:
            for step in range(1, last):
                metrics.log("train", step, 1.0, {"loss": float(last)})
    expected = {("train", "loss", step): 9.0 for step in range(1, 9)}
    assert line_scalars(tmp_path) == board_scalars(tmp_path) == expected


def test_a_sample_cannot_drive_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Metrics(tmp_path) as metrics:
        metrics.sample(1, "a\x1b[31m")
    assert capsys.readouterr().err == "    a\\x1b[31m\n"
    assert "\x1b" not in (tmp_path / "log.txt").read_text(encoding="utf-8")


KEPT = b'{"step": 1}\n{"step": 5}\n'


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (KEPT, KEPT),
        (KEPT + b'{"step": 6}\n{"st', KEPT),
        (
            KEPT + b'{"step": 5}\nnot JSON\n[1]\n{}\n{"step": "6"}\n',
            KEPT + b'{"step": 5}\nnot JSON\n[1]\n{}\n{"step": "6"}\n',
        ),
        (KEPT + b'{"step": 7}\n{"step": 5}\n', KEPT),
        (KEPT[:-3], b'{"step": 1}\n'),
        (KEPT + b'\0\0{"step": 9}\n', KEPT),
        (b"\0\n" + KEPT, b"\0\n" + KEPT),
        (b"\n" * 100_000 + KEPT, b"\n" * 100_000 + KEPT),
        (b"", b""),
    ],
    ids=[
        *("unchanged", "later lines", "damaged lines", "a line after later lines", "cut"),
        *("zeros at the end", "zeros before", "line ends", "empty"),
    ],
)
def test_a_resume_cuts_the_lines_of_later_steps_and_keeps_damaged_ones(
    tmp_path: Path, content: bytes, expected: bytes
) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(content)
    with Metrics(tmp_path, step=5) as metrics:
        assert (tmp_path / "metrics.jsonl").read_bytes() == expected
        metrics.log("train", 6, 1.0, {"a": 0.5})
    line = b'{"step": 6, "time": 1.0, "split": "train", "a": 0.5}\n'
    assert (tmp_path / "metrics.jsonl").read_bytes() == expected + line


def test_numbers_that_are_not_finite_become_null(tmp_path: Path) -> None:
    with Metrics(tmp_path) as metrics:
        metrics.log("train", 1, 0.0, {"a": math.nan, "b": math.inf, "c": -math.inf, "d": 1.5})
    line = (tmp_path / "metrics.jsonl").read_text(encoding="utf-8")
    assert line == '{"step": 1, "time": 0.0, "split": "train", "a": null, "b": null, "c": null, "d": 1.5}\n'


def test_metrics_without_a_run_write_nothing(tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with Metrics() as metrics:
        metrics.log("train", 1, 0.5, {"a": 0.5})
        metrics.sample(1, "b")
        metrics.progress(1, 2, {}, "")
        metrics.message("a line")
    assert capsys.readouterr() == ("", "")
    assert not list(tmp_path.iterdir())


@contextmanager
def full_at(size: int) -> Iterator[None]:
    """Let files grow to `size` bytes only. A write that does not fit is written in part, as on a full disk."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX")
def test_a_full_disk_leaves_a_gap_that_is_reported_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Later lines are whole again. TensorBoard ends."""
    path = tmp_path / "metrics.jsonl"
    with Metrics(tmp_path) as metrics:
        metrics.log("train", 1, 1.0, {"a": 0.5})
        metrics.flush()
        with full_at(path.stat().st_size + 10):
            for step in range(2, 5):
                metrics.log("train", step, 1.0, {"a": 0.5})
            metrics.flush()
            metrics.sample(8, "text " * 10)
        for step in (5, 6):
            metrics.log("train", step, 1.0, {"a": 0.5})
    first, torn, *later = path.read_text(encoding="utf-8").splitlines()
    assert json.loads(first)["step"] == 1
    assert torn == '{"step": 2'
    assert [json.loads(line)["step"] for line in later] == [5, 6]
    assert sorted(capsys.readouterr().err.splitlines()) == [  # TensorBoard's thread notices it sooner or later
        f"    {'text ' * 10}".rstrip(),
        f"cannot write {tmp_path / 'log.txt'}: File too large",
        f"cannot write {path}: File too large; its curves have a gap from step 2 on",
        "cannot write to TensorBoard: File too large; metrics.jsonl keeps the scalars",
    ]


# --- the terminal ------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def printed(tmp_path: Path, stream: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(sys, "stderr", stream)
    with Metrics(tmp_path) as metrics:
        metrics.message("a line")
        metrics.progress(500, 1000, {"loss": None, "val": None}, "")
        metrics.progress(750, 1000, {"loss": 1.5, "val": None}, "14k/s")
        assert not stream.isatty() or "loss 1.50" in stream.getvalue(), "the loss is shown at once"
        metrics.message("another\nline")
    return stream.getvalue()


def test_a_pipe_gets_plain_lines_and_no_bar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert printed(tmp_path, io.StringIO(), monkeypatch) == "a line\nanother\\nline\n"


def test_a_pipe_and_the_log_get_a_line_of_progress_from_time_to_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("minigpt.training.metrics.PAUSE", 0.0)
    with Metrics(tmp_path, step=5) as metrics:
        for step, loss in ((5, None), (6, 2.7), (7, 2.5)):  # the first step may compile, so its time says nothing
            metrics.progress(step, 9, {"loss": loss, "val": loss}, "1.20k/s")
    (line,) = capsys.readouterr().err.splitlines()
    found = r"\d\d:\d\d:\d\d step 7 of 9: loss 2\.5000, validation 2\.5000, 1\.20k characters/s, \d\d:\d\d left"
    assert re.fullmatch(found, line)
    assert (tmp_path / "log.txt").read_text(encoding="utf-8").endswith(f"\n{line}\n")


def test_a_terminal_gets_a_bar_that_starts_at_the_resumed_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its estimate counts the steps of this session only."""
    text = printed(tmp_path, Terminal(), monkeypatch)
    assert " 500/1000 " in text
    assert re.search(r" 75%\|.*\|  750/1000 [0-9:]+<[0-9:?]+ loss 1\.50 {15}14k/s", text)
    assert "a line\n" in text


def test_a_terminal_wraps_a_message_between_words_but_not_a_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("COLUMNS", "20")
    with Metrics(tmp_path) as metrics:
        metrics.message("compiling the network: 10 to 40 s")
        metrics.message("to resume: minigpt train --resume stories-1")
    lines = "compiling the\nnetwork: 10 to 40 s\n", "to resume: minigpt train --resume stories-1\n"
    assert stream.getvalue() == "".join(lines)
