"""`minigpt runs --replay` trains a run again and compares its weights."""

import json
import shutil
from pathlib import Path

import pytest
from command_line import SMALL, VERSE, Cli

from minigpt.model import device
from minigpt.storage.checkpoint import load_checkpoint
from minigpt.storage.runs import checkpoint_steps, step_folder
from minigpt.training import preparation

SAME = "run {}: training again gives the same weights at step 4, bit for bit\n"
pytestmark = pytest.mark.usefixtures("empty_folder")


def train(cli: Cli, name: str, *arguments: str) -> None:
    if not Path("verse.txt").exists():
        Path("verse.txt").write_text(VERSE, encoding="utf-8")
    done = cli("train", "verse.txt", *SMALL, "--name", name, *arguments)
    assert done.code == 0, done.err


def test_an_interrupted_run_with_dropout_and_an_average_gives_the_same_bits(cli: Cli) -> None:
    settings = ("model.dropout=0.2", "train.ema=0.5", "train.save_every=1", "train.keep_last=9")
    train(cli, "a", *(word for setting in settings for word in ("-s", setting)))
    for later in checkpoint_steps(Path("runs/a"))[2:]:
        shutil.rmtree(step_folder(Path("runs/a"), later))
    assert cli("train", "--resume", "a").code == 0
    before = sorted(path for path in Path().rglob("*"))
    assert cli("runs", "--replay", "a").out == SAME.format("a")
    assert cli("runs", "--replay", "a", "--json").json == {"run": "a", "step": 4, "different": []}
    assert sorted(path for path in Path().rglob("*")) == before, "nothing is written"


def test_a_run_that_started_from_another_needs_that_one(cli: Cli) -> None:
    train(cli, "a")
    assert cli("train", "verse.txt", "--from", "a", *SMALL[8:], "--name", "b").code == 0
    assert cli("runs", "--replay", "b").out == SAME.format("b")
    shutil.copytree("runs", "other")
    shutil.rmtree("runs/a")
    assert cli("runs", "other", "--replay", "b").out == SAME.format("b")
    assert "cannot replay run b from its start: no run is named 'a'" in cli("runs", "--replay", "b").error
    train(cli, "a", "-s", "train.seed=2")
    assert "of run a has changed since" in cli("runs", "--replay", "b").error


def test_a_run_is_replayed_as_it_was_computed_if_compiling_fails(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparation, "compile_loss", lambda loss, example, **options: loss)
    train(cli, "a", "-s", "runtime.compile=true")
    assert cli("runs", "--replay", "a").out == SAME.format("a")


def test_a_run_in_another_folder_is_replayed(cli: Cli) -> None:
    train(cli, "a")
    train(cli, "b", "-s", "train.seed=2")
    Path("old").mkdir()
    Path("runs/b").rename("old/a")
    for name in ("a", "last"):
        assert cli("runs", "old", "--replay", name).out == SAME.format("a")
    Path("old/a").rename("old/c")
    assert cli("runs", "old", "--replay", "b").error == "no run is named 'b'; available runs: c"
    assert "--replay cannot be combined with" in cli("runs", "--replay", "a", "--verify").error


def test_a_replay_that_cannot_be_compared_says_why(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    train(cli, "a")
    with monkeypatch.context() as patch:
        patch.setattr(device, "processor", lambda device: "abacus")
        assert "bits cannot be compared here: processor abacus instead of " in cli("runs", "--replay", "a").error
    assert cli("train", "--resume", "a", "-s", "train.steps=6").code == 0
    tensors = len(load_checkpoint("a").weights)
    expected = f"{tensors} tensors of run a differ at step 6; runs that changed settings or machine cannot be replayed"
    assert expected in cli("runs", "--replay", "a").error
    done = cli("runs", "--replay", "a", "--json")
    assert (done.code, len(json.loads(done.out)["different"])) == (1, tensors)
    Path("verse.txt").write_text(VERSE[::-1], encoding="utf-8")
    assert "verse.txt is not the text that this run was trained on" in cli("runs", "--replay", "a").error
