"""`minigpt runs --verify`: each kind of damage is named, and a kill leaves none."""

import errno
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest
from command_line import SMALL, VERSE, Cli, called

from minigpt.storage import verify
from minigpt.storage.runs import checkpoint_steps, step_folder
from minigpt.storage.verify import verify_runs

CHECKED = ["step-00000002", "step-00000004", "best checkpoint", "config.yaml", "metrics.jsonl"]

pytestmark = pytest.mark.usefixtures("empty_folder")


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two finished runs. Do not change them."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "verse.txt").write_text(VERSE, encoding="utf-8")
    for name in ("a", "b"):
        called(folder, "train", "verse.txt", "--name", name, *SMALL, "-s", "train.keep_last=2")
    return folder


@pytest.fixture
def run(trained: Path, empty_folder: Path) -> Path:
    """A copy of run `b` to damage, beside run `a`."""
    shutil.copytree(trained / "runs", "runs")
    assert checkpoint_steps(Path("runs/b")) == [2, 4]
    return Path("runs/b")


def problems() -> dict[str, str]:
    return {f"{item.run} {item.name}": item.problem for item in verify_runs() if item.problem}


def flip(path: Path, place: float = 0.5) -> None:
    content = bytearray(path.read_bytes())
    content[int(place * (len(content) - 1))] ^= 8
    path.write_bytes(content)


def test_what_training_wrote_is_intact(cli: Cli, run: Path) -> None:
    done = cli("runs", "--verify")
    assert done.code == 0, done
    assert done.out == f"{2 * len(CHECKED)} files of 2 runs are intact\n"
    found = cli("runs", "--verify", "--json").json
    assert [(item["run"], item["name"]) for item in found] == [(name, what) for name in "ab" for what in CHECKED]
    assert {item["problem"] for item in found} == {None}


def test_without_runs_nothing_is_damaged(cli: Cli) -> None:
    assert cli("runs", "--verify", "--json").json == []
    done = cli("runs", "--verify")
    assert (done.code, done.out) == (0, "")
    assert done.err == f"there are no runs in {Path('runs').absolute()}\n"


@pytest.mark.parametrize("name", ["config.yaml", "metrics.jsonl"])
def test_a_missing_file_of_a_run_with_checkpoints_is_named(run: Path, name: str) -> None:
    (run / name).unlink()
    assert list(problems()) == [f"b {name}"]
    assert "No such file" in problems()[f"b {name}"]


def test_a_checkpoint_pruned_meanwhile_is_not_damage(run: Path) -> None:
    first = min(checkpoint_steps(run))
    for item in verify_runs():
        assert item.problem is None, item
        if item.run == "b":
            shutil.rmtree(step_folder(run, first), ignore_errors=True)
    assert first not in checkpoint_steps(run)


def test_a_kill_leaves_no_damage(run: Path) -> None:
    with open(run / "metrics.jsonl", "a", encoding="utf-8") as metrics:
        metrics.write('{"step": 5}\n{"ste')
    (run / f"checkpoints/.step-00000006.{uuid4().hex}.tmp").mkdir()
    assert problems() == {}


def test_a_run_without_an_intact_checkpoint_is_damaged(run: Path) -> None:
    shutil.rmtree(run / "checkpoints")
    assert set(problems().values()) == {"there is no intact checkpoint to compare it with"}


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
    done, verified = cli("sample", "a"), cli("runs", "--verify")
    assert re.fullmatch(f"minigpt: {refused}\\S*: Permission denied\n", done.err)
    assert (verified.code, "Permission denied" in verified.out + verified.err) == (1, True)
    if folder != ".":
        assert [row["name"] for row in cli("runs", "--json").json] == ["b"]
        assert cli("sample", "b", "-l", 1).code == 0, "one unreadable run does not close the others"


def test_an_unreadable_file_is_named_and_the_others_are_checked(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def bad_sector(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(verify, "open_within", bad_sector)
    assert set(problems()) == {f"{run} metrics.jsonl" for run in "ab"}


STEP_2, STEP_4 = "checkpoints/step-00000002", "checkpoints/step-00000004"
DAMAGE: dict[str, tuple[Callable[[Path], object], dict[str, str]]] = {
    "settings": (
        lambda run: (run / "config.yaml").write_text("model: {n_layer: 2}"),
        {"config.yaml": "config.yaml differs from the settings of the checkpoint step-00000004"},
    ),
    "metrics cut": (
        lambda run: os.truncate(run / "metrics.jsonl", (run / "metrics.jsonl").stat().st_size - 1),
        {"metrics.jsonl": "it has changed since step 4"},
    ),
    "model": (
        lambda run: flip(run / STEP_2 / "model.safetensors", 0.9),
        {"step-00000002": "model.safetensors has changed since"},
    ),
    "optimizer missing": (
        lambda run: (run / STEP_4 / "optimizer.safetensors").unlink(),
        {"step-00000004": "optimizer state is missing"},
    ),
    "metadata": (
        lambda run: flip(run / STEP_4 / "metadata.json", 0.2),
        {"step-00000004": "metadata.json has changed since", "best checkpoint": "only the newest checkpoint records"},
    ),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_each_kind_of_damage_is_named_once(run: Path, what: str) -> None:
    damage, expected = DAMAGE[what]
    damage(run)
    found = problems()
    assert found.keys() == {f"b {file}" for file in expected}
    for file, problem in expected.items():
        assert problem in found[f"b {file}"]
        assert found[f"b {file}"].isprintable()


def test_damage_exits_with_code_1(cli: Cli, run: Path) -> None:
    flip(run / STEP_2 / "model.safetensors")
    flip(run / STEP_4 / "metadata.json", 0.2)
    done = cli("runs", "--verify")
    assert (done.code, done.err) == (1, "minigpt: 5 of 10 files are damaged\n")
    rows = [line for line in done.out.splitlines()[1:] if not line.endswith("intact")]
    assert [row.split()[:2] for row in rows] == [["b", name] for name in (*CHECKED[:2], "best", *CHECKED[3:])]
    assert "model.safetensors has changed since it was saved" in rows[0]
    assert cli("runs", "--verify", "--json").code == 1
