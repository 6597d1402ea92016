"""`minigpt runs replay` trains a run again and compares its weights."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import SMALL, VERSE, Cli
from forgery import MODEL, forge
from safetensors.numpy import load, save

from minigpt.cli.replay import replay
from minigpt.model import device
from minigpt.storage.checkpoint import load_checkpoint
from minigpt.storage.runs import checkpoint_steps, step_folder
from minigpt.training import compilation

SAME = "run {}: training again gives the same weights at step 4, bit for bit\n"
pytestmark = [pytest.mark.nightly, pytest.mark.usefixtures("empty_folder")]


def train(cli: Cli, name: str, *arguments: str) -> None:
    if not Path("verse.txt").exists():
        Path("verse.txt").write_text(VERSE, encoding="utf-8")
    done = cli("train", "verse.txt", *SMALL, "--name", name, *arguments)
    assert done.code == 0, done.err


def test_an_interrupted_run_with_dropout_gives_the_same_bits(cli: Cli) -> None:
    settings = ("model.dropout=0.2", "train.save_every=1", "train.keep_last=9")
    train(cli, "a", *(word for setting in settings for word in ("-s", setting)))
    for later in checkpoint_steps(Path("runs/a"))[2:]:
        shutil.rmtree(step_folder(Path("runs/a"), later))
    assert cli("train", "--resume", "a").code == 0
    before = sorted(path for path in Path().rglob("*"))
    assert cli("runs", "replay", "a").out == SAME.format("a")
    assert cli("runs", "replay", "a", "--json").json == {"run": "a", "step": 4, "different": []}
    assert sorted(path for path in Path().rglob("*")) == before, "nothing is written"


def test_a_run_that_started_from_another_needs_that_one(cli: Cli) -> None:
    train(cli, "a")
    assert cli("train", "verse.txt", "--from", "a", *SMALL[8:], "--name", "b").code == 0
    assert cli("runs", "replay", "b").out == SAME.format("b")
    shutil.copytree("runs", "other")
    shutil.rmtree("runs/a")
    assert cli("runs", "replay", "other/b").out == SAME.format("b")
    assert "cannot replay run b from its start: no run is named 'a'" in cli("runs", "replay", "b").error
    train(cli, "a", "-s", "train.seed=2")
    assert "of run a has changed since" in cli("runs", "replay", "b").error


def test_a_run_is_replayed_as_it_was_computed_if_compiling_fails(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilation, "compile_loss", lambda loss, *_, **__: loss)
    train(cli, "a", "-s", "runtime.compile=true")
    assert cli("runs", "replay", "a").out == SAME.format("a")


def test_a_run_in_another_folder_is_replayed(cli: Cli) -> None:
    train(cli, "a")
    train(cli, "b", "-s", "train.seed=2")
    Path("old").mkdir()
    Path("runs/b").rename("old/a")
    assert cli("runs", "replay", "old/a").out == SAME.format("a")


def test_a_replay_that_cannot_be_compared_says_why(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    train(cli, "a")
    with monkeypatch.context() as patch:
        patch.setattr(device, "processor", lambda device: "abacus")
        assert "cannot compare bitwise here: processor abacus instead of " in cli("runs", "replay", "a").error
    weights = load((step_folder(Path("runs/a"), 4) / MODEL).read_bytes())
    forge(step_folder(Path("runs/a"), 4), {MODEL: save({name: array * 2 for name, array in weights.items()})})
    tensors = sum(bool(array.any()) for array in weights.values())
    expected = f"{tensors} tensors of run a differ up to step 4; a run that changed its machine or train.micro_batch_"
    assert expected in cli("runs", "replay", "a").error
    done = cli("runs", "replay", "a", "--json")
    assert (done.code, len(json.loads(done.out)["different"])) == (1, tensors)
    Path("verse.txt").write_text(VERSE[::-1], encoding="utf-8")
    assert expected in cli("runs", "replay", "a").error, "the text is cached"
    monkeypatch.setenv("MINIGPT_CACHE", "empty")
    assert "verse.txt is not the text that this run was trained on" in cli("runs", "replay", "a").error


def test_a_run_that_was_made_longer_gives_the_same_bits(cli: Cli) -> None:
    train(cli, "a", "-s", "train.save_every=1", "-s", "train.keep_last=9")
    for steps in (6, 5, 8):
        for later in [step for step in checkpoint_steps(Path("runs/a")) if step > 3]:
            shutil.rmtree(step_folder(Path("runs/a"), later))
        assert cli("train", "--resume", "a", "-s", f"train.steps={steps}").code == 0
    assert cli("train", "--resume", "a", "-s", "train.steps=9").code == 0
    assert cli("runs", "replay", "a").out == SAME.format("a").replace("4", "9")


def test_equal_numbers_with_other_bits_differ(cli: Cli) -> None:
    train(cli, "a", "-s", "train.keep_last=9")
    folder = step_folder(Path("runs/a"), 0)
    weights = load((folder / MODEL).read_bytes())
    zeros = [name for name, array in weights.items() if not array.any()]
    assert zeros, "zero_init leaves some"
    assert replay(load_checkpoint(folder)) == []
    forge(folder, {MODEL: save({**weights, zeros[0]: -weights[zeros[0]]})})
    assert replay(load_checkpoint(folder)) == [zeros[0]]


def test_steps_of_processes_with_inexact_sums_cannot_be_compared(cli: Cli) -> None:
    train(cli, "a", "-s", "train.save_every=1", "-s", "train.keep_last=9")
    for later in checkpoint_steps(Path("runs/a"))[3:]:
        shutil.rmtree(step_folder(Path("runs/a"), later))
    assert cli("train", "--resume", "a").code == 0
    log = Path("runs/a/environment.jsonl")
    first, second = map(json.loads, log.read_text(encoding="utf-8").splitlines())
    inexact = {"sums": "all-reduce of 4 processes"}

    def record(*starts: dict[str, Any]) -> None:
        log.write_text("".join(f"{json.dumps(start)}\n" for start in starts), encoding="utf-8")

    record(first | inexact, second)
    expected = "cannot compare bitwise: all-reduce of 4 processes added up the gradients after step 0"
    assert cli("runs", "replay", "a").error == expected


def test_a_run_that_started_from_a_copied_checkpoint_is_replayed(cli: Cli) -> None:
    train(cli, "a")
    for copy in ("copy", "runs/beside"):
        shutil.copytree(step_folder(Path("runs/a"), 4), copy)
        assert cli("train", "verse.txt", "--from", copy, *SMALL[8:], "--name", "b").code == 0
        assert cli("runs", "replay", "b").out == SAME.format("b")
        weights = load(Path(copy, MODEL).read_bytes())
        forge(Path(copy), {MODEL: save({name: array * np.float32(2) for name, array in weights.items()})})
        assert "has changed since" in cli("runs", "replay", "b").error
        shutil.rmtree("runs/b")
