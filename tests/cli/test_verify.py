"""`minigpt runs verify`: each damaged checkpoint is named, and a kill leaves none."""

import errno
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest
from command_line import SMALL, VERSE, Cli, called

from minigpt.cli import verify as cli_verify
from minigpt.paths import FRAMES
from minigpt.storage.checkpoint import Checkpoint
from minigpt.storage.runs import checkpoint_steps, step_folder

CHECKED = ["step-00000002", "step-00000004"]

pytestmark = pytest.mark.usefixtures("empty_folder")


@pytest.fixture(scope="session")
def trained(once: Callable[..., Path]) -> Path:
    """Two finished runs. Read only."""
    common = ["verse.txt", *SMALL, "-s", "train.keep_last=2", "--name"]
    return once("verified", {"verse.txt": VERSE}, [*common, "a"], [*common, "b"])


@pytest.fixture
def run(trained: Path, empty_folder: Path) -> Path:
    """A copy of run `b` to damage, beside run `a`."""
    shutil.copytree(trained / "runs", "runs")
    assert checkpoint_steps(Path("runs/b")) == [2, 4]
    return Path("runs/b")


def problems() -> dict[str, str | None]:
    return {f"{item['run']} {item['name']}": item["problem"] for item in cli_verify.verify_runs() if item["problem"]}


def flip(path: Path, place: float = 0.5) -> None:
    content = bytearray(path.read_bytes())
    content[int(place * (len(content) - 1))] ^= 8
    path.write_bytes(content)


def test_what_training_wrote_is_intact(cli: Cli, run: Path) -> None:
    done = cli("runs", "verify")
    assert (done.code, done.out) == (0, "4 checkpoints of 2 runs are intact\n")
    found = cli("runs", "verify", "--json").json
    assert [(item["run"], item["name"]) for item in found] == [(name, what) for name in "ab" for what in CHECKED]
    assert {item["problem"] for item in found} == {None}


def test_without_runs_nothing_is_damaged(cli: Cli) -> None:
    assert cli("runs", "verify", "--json").json == []
    done = cli("runs", "verify")
    assert (done.code, done.out) == (0, "")
    assert done.err == f"there are no runs in {Path('runs').absolute()}\n"


def test_a_checkpoint_pruned_meanwhile_is_not_damage(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = min(checkpoint_steps(run))

    def prune_and_read(folder: Path) -> Checkpoint:
        shutil.rmtree(step_folder(run, first), ignore_errors=True)
        return read(folder)

    read = cli_verify.read_intact
    monkeypatch.setattr(cli_verify, "read_intact", prune_and_read)
    assert problems() == {}
    assert first not in checkpoint_steps(run)


def test_a_kill_leaves_no_damage(run: Path) -> None:
    (run / f"checkpoints/.step-00000006.{uuid4().hex}.tmp").mkdir()
    assert problems() == {}


def test_a_run_without_checkpoints_is_damaged(run: Path) -> None:
    shutil.rmtree(run / "checkpoints")
    assert problems() == {"b checkpoints": "there is no checkpoint"}


@pytest.mark.parametrize("folder", [".", "a", "a/checkpoints"])
def test_a_folder_that_cannot_be_read_is_an_error(
    cli: Cli, run: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    listdir, refused = os.listdir, Path("runs", folder)

    def denied(path: Path) -> list[str]:
        if refused in (path, *path.parents):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return listdir(path)

    monkeypatch.setattr(os, "listdir", denied)
    done, verified = cli("sample", "a"), cli("runs", "verify")
    assert re.fullmatch(f"minigpt: {refused}\\S*: Permission denied\n", done.err)
    assert (verified.code, "Permission denied" in verified.out + verified.err) == (1, True)
    if folder != ".":
        assert [row["name"] for row in cli("runs", "--json").json] == ["b"]
        assert cli("sample", "b", "-l", 1).code == 0, "one unreadable run does not close the others"


def test_a_huge_file_and_weights_of_another_run_are_named(
    trained: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step, change in ((2, "model.n_layer=2"), (4, "data.tokenizer=byte")):
        called(Path(), "train", str(trained / "verse.txt"), "--name", "c", *SMALL, "-s", change)
        shutil.copytree(step_folder(Path("runs/c"), step), step_folder(run, step, FRAMES))
        shutil.rmtree("runs/c")
    monkeypatch.setattr("minigpt.files.free_memory", lambda: 20_000)  # hashing needs no memory for whole files
    os.truncate(step_folder(Path("runs/a"), 2) / "model.safetensors", 1 << 40)
    found = problems()
    assert found.keys() == {"a step-00000002", "b frames/step-00000002", "b frames/step-00000004"}
    assert "model.safetensors is larger than" in found["a step-00000002"]
    assert "is not of this run: model.n_layer is 1" in found["b frames/step-00000002"]
    assert "is not of this run: data.tokenizer is char" in found["b frames/step-00000004"]


def test_each_damaged_checkpoint_is_named(cli: Cli, run: Path) -> None:
    flip(run / "checkpoints/step-00000002/model.safetensors")
    (run / "checkpoints/step-00000004/optimizer.safetensors").unlink()
    done = cli("runs", "verify")
    assert (done.code, done.err) == (1, "minigpt: 2 of 4 checkpoints have a problem\n")
    first, second = done.out.splitlines()[1:]
    assert re.fullmatch(r"b +step-00000002 .*model\.safetensors has changed since it was saved", first)
    assert re.fullmatch(r"b +step-00000004 .*optimizer state is missing", second)
    assert cli("runs", "verify", "--json").code == 1
