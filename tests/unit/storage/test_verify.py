"""`minigpt runs --verify`: each kind of damage is found and named, and what a kill leaves is no damage."""

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import SMALL, VERSE, Cli, called

from minigpt.storage import verify
from minigpt.storage.runs import checkpoint_steps, step_folder
from minigpt.storage.verify import verify_runs

CHECKED = [
    *("config.yaml", "environment.json", "metrics.jsonl", "curves"),
    *("step 2", "step 4", "pointer last", "pointer best"),
]

pytestmark = pytest.mark.usefixtures("empty_folder")


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two finished runs; only to be read."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "verse.txt").write_text(VERSE, encoding="utf-8")
    for name in ("a", "b"):
        called(folder, "train", "verse.txt", "--name", name, *SMALL, "-s", "train.keep_last=2")
    return folder


@pytest.fixture
def run(trained: Path, empty_folder: Path) -> Path:
    """A copy of run `b`, to be spoilt, beside run `a`."""
    shutil.copytree(trained / "runs", "runs")
    assert checkpoint_steps(Path("runs/b")) == [2, 4]
    return Path("runs/b")


def test_a_run_without_its_settings_is_not_passed_over(run: Path) -> None:
    (run / "config.yaml").unlink()
    (found,) = problems().items()
    assert found[0] == "b config.yaml"
    assert "No such file" in found[1]


@pytest.mark.parametrize("name", ["environment.json", "metrics.jsonl", "tensorboard"])
def test_what_a_run_lacks_beside_its_checkpoints_is_told(run: Path, name: str) -> None:
    """One that was stopped before its first checkpoint may lack any of it."""
    shutil.rmtree(run / name) if name == "tensorboard" else (run / name).unlink()
    (found,) = problems().items()
    assert found[0] == f"b {'curves' if name == 'tensorboard' else name}"
    assert "No such file" in found[1]
    shutil.rmtree(run / "checkpoints")
    assert problems() == {}


def problems() -> dict[str, str]:
    return {f"{one.run} {one.what}": one.problem for one in verify_runs() if one.problem}


def flip(path: Path, place: float = 0.5) -> None:
    content = bytearray(path.read_bytes())
    content[int(place * (len(content) - 1))] ^= 8
    path.write_bytes(content)


def events(run: Path) -> Path:
    path, *projector = sorted((run / "tensorboard").iterdir())
    assert path.name.startswith("events.")
    assert [file.name for file in projector] == ["labels.tsv", "projector_config.pbtxt", "vectors.tsv"]
    return path


# --- whole -------------------------------------------------------------------------------------------


def test_what_training_wrote_is_intact(cli: Cli, run: Path) -> None:
    done = cli("runs", "--verify")
    assert done.code == 0, done
    head, *rows = done.out.splitlines()
    assert head.split() == ["run", "what"]
    assert [line.rsplit(None, 1)[1] for line in rows] == ["intact"] * 16
    found = cli("runs", "--verify", "--json").json
    assert [(one["run"], one["what"]) for one in found] == [(name, what) for name in "ab" for what in CHECKED]
    assert {one["problem"] for one in found} == {None}


def test_nothing_to_check_is_nothing_wrong(cli: Cli) -> None:
    assert cli("runs", "--verify", "--json").json == []
    done = cli("runs", "--verify")
    assert (done.code, done.out) == (0, "")
    assert done.err == f"there is no run in {Path('runs').absolute()}: nothing to check\n"


def test_pointers_without_checkpoints_are_told(run: Path) -> None:
    for step in checkpoint_steps(run):
        shutil.rmtree(step_folder(run, step))
    assert [what for what in problems() if what.startswith("b ")] == ["b pointer last", "b pointer best"]


def test_a_checkpoint_that_a_training_removes_meanwhile_is_no_damage(run: Path) -> None:
    first = min(checkpoint_steps(run))
    for one in verify_runs():
        assert one.problem is None, one
        if one.run == "b":
            shutil.rmtree(step_folder(run, first), ignore_errors=True)
    assert first not in checkpoint_steps(run)


@pytest.mark.parametrize("cut", [1, 3, 12, 20, 60])
def test_what_a_kill_leaves_is_no_damage(run: Path, cut: int) -> None:
    """A part of a last line, of a last record, of a save: a resume removes it, and no run is damaged by a kill."""
    for path in (run / "metrics.jsonl", events(run)):
        path.write_bytes(path.read_bytes()[:-cut])
    (run / "checkpoints/.saving-step-00000006").mkdir()
    (run / ".config.yaml.77").touch()
    assert problems() == {}
    shutil.rmtree("runs/a")
    shutil.rmtree(run / "checkpoints")
    for name in ("environment.json", "metrics.jsonl"):  # killed before it wrote them
        (run / name).unlink()
    assert problems() == {}


def test_what_cannot_be_read_is_named_and_the_rest_is_checked(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def bad_sector(path: Path) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(verify, "_check_curves", bad_sector)
    found = problems()
    assert set(found) == {"a metrics.jsonl", "b metrics.jsonl"}
    assert all("metrics.jsonl cannot be read: " in problem for problem in found.values())


# --- damaged -----------------------------------------------------------------------------------------

DAMAGE: dict[str, tuple[Callable[[Path], object], dict[str, str]]] = {
    "config flipped": (
        lambda run: (run / "config.yaml").write_text("model: {n_layer: !!python/name:os.system }"),
        {"b config.yaml": "not valid YAML"},
    ),
    "config of other settings": (
        lambda run: (run / "config.yaml").write_text("model: {n_layr: 2}"),
        {"b config.yaml": "n_layr: unknown key"},
    ),
    "environment": (lambda run: (run / "environment.json").write_text("[{"), {"b environment.json": "not valid JSON"}),
    "curves flipped": (lambda run: flip_line(run / "metrics.jsonl"), {"b metrics.jsonl": "line 2 is damaged"}),
    "curves back in time": (
        lambda run: (run / "metrics.jsonl").write_text('{"step": 2}\n{"step": 1}\n'),
        {"b metrics.jsonl": "line 2 is damaged"},
    ),
    "curves not of steps": (
        lambda run: (run / "metrics.jsonl").write_text('{"step": "2"}\n'),
        {"b metrics.jsonl": "line 1 is damaged"},
    ),
    "events flipped at once": (lambda run: flip(events(run), 0.0), {"b curves": "TensorBoard shows its curves up to"}),
    "events flipped": (lambda run: flip(events(run)), {"b curves": "TensorBoard shows its curves up to"}),
    "model flipped": (
        lambda run: flip(run / "checkpoints/step-00000002/model.safetensors", 0.9),
        {"b step 2": "model.safetensors changed since"},
    ),
    "optimizer cut": (
        lambda run: os.truncate(run / "checkpoints/step-00000004/optimizer.safetensors", 3000),
        {"b step 4": "optimizer.safetensors changed since"},
    ),
    "tokenizer missing": (
        lambda run: (run / "checkpoints/step-00000004/tokenizer.json").unlink(),
        {"b step 4": "tokenizer.json is missing"},
    ),
    "description": (
        lambda run: flip(run / "checkpoints/step-00000004/metadata.json", 0.2),
        {"b step 4": "metadata.json changed since"},
    ),
    "steps swapped": (
        lambda run: swap(run / "checkpoints/step-00000002", run / "checkpoints/step-00000004"),
        {"b step 2": "holds step 4", "b step 4": "holds step 2"},
    ),
    "pointer to nothing": (
        lambda run: (run / "checkpoints/best").write_text("step-00000003\n"),
        {"b pointer best": "names no checkpoint"},
    ),
    "pointer missing": (
        lambda run: (run / "checkpoints/last").unlink(),
        {"b pointer last": "names no checkpoint"},
    ),
    "set aside": (
        lambda run: (run / "checkpoints/step-00000004").rename(run / "checkpoints/quarantined-step-00000004"),
        {
            "b quarantined-step-00000004": "set aside by a resume",
            "b pointer last": "names no",
            "b pointer best": "names no",
        },
    ),
}


def flip_line(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    lines[1] = lines[1].replace(b"{", b"\xff", 1)
    path.write_bytes(b"".join(lines))


def swap(one: Path, other: Path) -> None:
    for source, target in ((one, Path("third")), (other, one), (Path("third"), other)):
        source.rename(target)


@pytest.mark.parametrize("what", DAMAGE)
def test_each_kind_of_damage_is_named_where_it_is_and_nowhere_else(run: Path, what: str) -> None:
    damage, expected = DAMAGE[what]
    best = (run / "checkpoints/best").read_text(encoding="utf-8")
    damage(run)
    found = problems()
    if what == "set aside" and best == "step-00000002\n":
        expected = {key: says for key, says in expected.items() if key != "b pointer best"}
    assert found.keys() == expected.keys()
    for key, says in expected.items():
        assert says in found[key]
        assert found[key].isprintable()


def test_damage_is_exit_code_1_in_a_table_and_in_json(cli: Cli, run: Path) -> None:
    flip(run / "checkpoints/step-00000002/model.safetensors")
    (run / "checkpoints/best").write_text("nonsense", encoding="utf-8")
    done = cli("runs", "--verify")
    assert (done.code, done.err) == (1, "minigpt: 2 of 16 are not as they were written\n")
    rows = [line for line in done.out.splitlines() if not line.endswith("intact")]
    assert [row.split()[:3] for row in rows[1:]] == [["b", "step", "2"], ["b", "pointer", "best"]]
    assert "model.safetensors changed since it was written" in rows[1]
    done = cli("runs", "--verify", "--json")
    assert done.code == 1
    found = json.loads(done.out)
    assert len(found) == 16
    assert [one["what"] for one in found if one["problem"]] == ["step 2", "pointer best"]


def test_every_byte_of_an_event_file_is_checked(run: Path) -> None:
    """But for the length of the last record, which a kill may have cut off."""
    shutil.rmtree("runs/a")
    path = events(run)
    content = path.read_bytes()
    for place in range(0, len(content) - 200, 97):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        assert problems().keys() == {"b curves"}, place
    path.write_bytes(content)
    assert problems() == {}
