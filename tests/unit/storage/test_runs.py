"""Runs: which folder a name means, which checkpoint, who may start or resume one."""

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from command_line import Cli

from minigpt.errors import CheckpointError, RunExistsError, RunLockedError, RunNotFoundError, UserError
from minigpt.paths import LOCK, containing_run, is_run
from minigpt.storage.metadata import METADATA, Environment, digest
from minigpt.storage.records import record_start
from minigpt.storage.runs import (
    all_runs,
    best_step,
    checkpoint_steps,
    find_checkpoint,
    find_run,
    is_training,
    lock,
    new_run,
    step_folder,
)
from minigpt.viewer.page import last_start

ROOT = Path(__file__).resolve().parents[3]
FIELDS: dict[str, Any] = {
    "format": 1,
    "corpus": "abc",
    "fingerprint": "f",
    "vocab_size": 5,
    "parameters": 7,
    "runtime": {"device": "cpu", "dtype": "float32", "compile": False, "threads": 1},
}

pytestmark = pytest.mark.usefixtures("empty_folder")


def make_run(path: str | Path, steps: tuple[int, ...] = (), touched: float = 1e9) -> Path:
    """Make a run without tensors. Its first step is the best."""
    run = Path(path)
    run.mkdir(parents=True)
    (run / "config.yaml").write_text("", encoding="utf-8")
    (run / "environment.jsonl").touch()
    for step in steps:
        make_checkpoint(step_folder(run, step), step, best=steps[0])
    os.utime(run / "config.yaml", (touched, touched))
    return run


def make_checkpoint(folder: Path, step: int, best: int = 0) -> Path:
    folder.mkdir(parents=True)
    fields = {**FIELDS, "state": {"step": step, "best_loss": 1.5, "best_step": best}}
    (folder / METADATA).write_text(json.dumps({**fields, "sha256": {METADATA: digest(fields)}}), encoding="utf-8")
    (folder / "config.yaml").write_text("", encoding="utf-8")
    return folder


# --- find runs ---------------------------------------------------------------------------------------


def test_a_run_has_settings_or_checkpoints() -> None:
    run = make_run("runs/ours", (5,))
    Path("runs/theirs").mkdir()
    Path("runs/theirs/config.yaml").write_text("lr: 1\n", encoding="utf-8")
    assert all_runs() == [run]
    assert not is_run(Path("runs/theirs"))
    (run / "config.yaml").unlink()
    assert all_runs() == [run], "lost its settings"
    shutil.rmtree(run / "checkpoints")
    assert all_runs() == []


def test_a_run_owns_only_what_training_writes() -> None:
    run = make_run("runs/a", (5,)).resolve()
    for name in ("config.yaml", "metrics.jsonl", "checkpoints/new/file"):
        assert containing_run(Path("runs/a") / name) == run
    for name in ("runs/a/notes.txt", "runs/b.txt", "config.yaml"):
        assert containing_run(Path(name)) is None
    Path("alias").symlink_to(run / "metrics.jsonl")
    assert containing_run(Path("alias")) == run


def test_a_run_is_found_by_its_name_its_folder_and_last(tmp_path: Path) -> None:
    for name, touched in (("runs/a", 3e8), ("runs/b", 5e8), ("runs/c", 4e8), ("elsewhere/d", 9e8)):
        make_run(name, touched=touched)
    assert find_run("a") == find_run("runs/a") == Path("runs/a")
    assert find_run(str(tmp_path / "runs/a")) == tmp_path / "runs/a"
    assert find_run("elsewhere/d") == Path("elsewhere/d")
    assert [run.name for run in all_runs()] == ["a", "c", "b"]
    assert find_run("last") == Path("runs/b")
    (tmp_path / "runs/c/metrics.jsonl").touch()
    assert find_run("last") == Path("runs/c")
    os.utime("runs/c/metrics.jsonl", (1e8, 1e8))
    (tmp_path / "runs/c/config.yaml").touch()  # a refused resume
    assert find_run("last") == Path("runs/b")


def test_a_name_means_a_run_in_runs_and_a_path_means_a_folder() -> None:
    make_run("a")
    make_run("runs/a")
    make_run("runs/last", touched=3e8)
    assert find_run("a") == Path("runs/a")
    for path in ("./a", "a/", os.path.join("..", Path.cwd().name, "a")):
        assert find_run(path).resolve() == Path("a").resolve()
    assert find_run("last").name != "last"
    assert find_run("runs/last") == Path("runs/last")


@pytest.mark.parametrize(
    "name", ["shakespaere", "xyz", "", ".", "two\nlines", "x" * 5000, "runs"], ids=lambda name: name[:20]
)
def test_an_unknown_name_is_one_line_with_the_names_of_runs(name: str) -> None:
    with pytest.raises(RunNotFoundError) as error:
        find_run(name)
    assert error.value.names == ()
    make_run("runs/python-1", touched=3e8)
    make_run("runs/shakespeare", (5,), touched=4e8)
    with pytest.raises(RunNotFoundError, match="no run is named '") as error:
        find_run(name)
    assert "\n" not in str(error.value)
    assert error.value.names == ("python-1", "shakespeare")


def test_a_checkpoint_is_not_a_run() -> None:
    run = make_run("runs/a", (5,))
    with pytest.raises(UserError, match="is a checkpoint; give the name of its run"):
        find_run(str(step_folder(run, 5)))


# --- find checkpoints --------------------------------------------------------------------------------


def test_a_checkpoint_is_found_by_best_last_step_and_its_folder() -> None:
    run = make_run("runs/a", (5, 10, 15), touched=3e8)
    for which, step in ((None, 5), ("best", 5), ("last", 15), ("10", 10), (10, 10), ("00000010", 10)):
        assert find_checkpoint("a", which) == step_folder(run, step)
    assert find_checkpoint(str(step_folder(run, 10))) == step_folder(run, 10)
    make_run("runs/failed", touched=5e8)
    assert find_checkpoint("last", "last") == step_folder(run, 15), "a run without checkpoints does not hide others"


@pytest.mark.parametrize(
    ("name", "which", "problem"),
    [
        *(("a", which, f"run a has no checkpoint {which}; use 5, 10, best or last") for which in ("11", "-5", "²")),
        ("empty", None, "run empty has no checkpoint yet"),
        ("copy", "best", "copy is a checkpoint; give the name of its run"),
        ("b", None, "no run is named 'b'; available runs: empty, a"),
    ],
)
def test_a_missing_checkpoint_is_one_line(name: str, which: str | None, problem: str) -> None:
    make_run("runs/a", (5, 10))
    make_run("runs/empty")
    make_checkpoint(Path("copy"), 3)
    with pytest.raises({"b": RunNotFoundError, "copy": UserError}.get(name, CheckpointError)) as error:
        find_checkpoint(name, which)
    assert str(error.value) == problem


def test_only_published_checkpoints_count() -> None:
    run = make_run("runs/a", (5, 100_000_000))
    for name in (
        ".step-00000009.1.tmp",
        "step-00000007 copy",
        "quarantined-step-00000008-1",
        "step-²²²²²²²²",
        "step-7",
    ):
        make_checkpoint(run / "checkpoints" / name, 7)
    assert checkpoint_steps(run) == [5, 100_000_000]


def test_no_other_checkpoint_replaces_the_best() -> None:
    run = make_run("runs/a", (5, 10, 15))
    assert best_step(run) == 5
    shutil.move(step_folder(run, 5), "elsewhere")
    with pytest.raises(CheckpointError, match="checkpoint 5 of run a is missing"):
        best_step(run)
    shutil.move("elsewhere", step_folder(run, 5))
    (step_folder(run, 15) / METADATA).write_text("damaged", encoding="utf-8")
    with pytest.raises(
        CheckpointError, match="only the newest checkpoint records which checkpoint is the best, and it is"
    ):
        best_step(run)
    assert find_checkpoint("a", "last") == step_folder(run, 15)


# --- start runs --------------------------------------------------------------------------------------


def start(name: str | None = None, files: tuple[str, ...] = ("metrics.jsonl",), fails: bool = False) -> Path:
    """Start a run that writes some files, and fails then if asked to."""
    with new_run(name, "tiny") as folder:
        for file in files:
            (folder / file).write_text('{"step": 0}\n', encoding="utf-8")
        if fails:
            raise UserError("refused later")
    return folder


def test_a_new_run_gets_the_next_free_number() -> None:
    assert [start().name for _ in range(3)] == ["tiny-1", "tiny-2", "tiny-3"]
    shutil.rmtree("runs/tiny-2")
    assert start().name == "tiny-2"
    assert start("läuft 2") == Path("runs/läuft 2")


def test_a_failed_run_without_metrics_keeps_a_trained_checkpoint() -> None:
    def fail_at(step: int) -> None:
        with new_run(f"at-{step}", "tiny") as folder:
            make_checkpoint(step_folder(folder, step), step)
            raise UserError("refused later")

    for step in (0, 5):
        with pytest.raises(UserError):
            fail_at(step)
    assert [run.name for run in all_runs()] == ["at-5"]


@pytest.mark.parametrize(
    "name", ["last", "best", "auto", "", ".", "a/b", "../a", ".hidden", "a\n", "-x", "a\\b", "a:b", " a"]
)
def test_a_name_with_another_meaning_is_refused(name: str) -> None:
    with pytest.raises(UserError, match="is not a valid run name: use letters, digits") as error:
        start(name)
    assert "\n" not in str(error.value)
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    "files",
    [
        *(["notes.txt"], ["config.yaml"], [LOCK, "notes.txt"], ["checkpoints/mine.txt"], [LOCK, "metrics.jsonl"]),
        *(["validation/notes.txt"], ["checkpoints/step-00000005/metadata.json"]),
    ],
    ids=" ".join,
)
def test_a_folder_with_any_file_is_never_taken_for_a_new_run(files: list[str]) -> None:
    for name in files:
        path = Path("runs/tiny-1", name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine\n", encoding="utf-8")
    before = {path: path.read_bytes() for path in Path("runs").rglob("*") if path.is_file()}
    with pytest.raises(RunExistsError, match="run 'tiny-1' already exists") as error:
        start("tiny-1")
    assert error.value.is_resumable is any("step-" in name for name in files)
    assert start() == Path("runs/tiny-2")
    assert {path: path.read_bytes() for path in Path("runs/tiny-1").rglob("*") if path.is_file()} == before


def test_a_file_or_a_link_is_never_taken_for_a_new_run() -> None:
    Path("runs").mkdir()
    Path("runs/file").touch()
    Path("runs/link").symlink_to("nowhere")
    for name in ("file", "link"):
        with pytest.raises(RunExistsError):
            start(name)
    assert Path("runs/link").is_symlink()


def test_a_start_that_was_killed_before_its_first_checkpoint_frees_its_name() -> None:
    Path(f"runs/a/checkpoints/.step-00000000.{'0' * 32}.tmp").mkdir(parents=True)
    Path("runs/a", LOCK).touch()
    with holder(Path("runs/a")), pytest.raises(RunLockedError):
        start("a")
    assert start("a") == Path("runs/a")
    with pytest.raises(RunExistsError):
        start("a")


@pytest.mark.parametrize("is_trained", [False, True])
def test_a_start_that_fails_leaves_its_folder_only_after_training(is_trained: bool) -> None:
    with pytest.raises(UserError, match="refused later"):
        start("a", ("config.yaml", "metrics.jsonl") if is_trained else ("config.yaml",), fails=True)
    assert Path("runs/a").exists() is is_trained


# --- lock --------------------------------------------------------------------------------------------


@contextmanager
def holder(run: Path) -> "Iterator[subprocess.Popen[str]]":
    """Another process that holds the lock of `run`."""
    script = """
import sys
from pathlib import Path
from minigpt.storage.runs import lock
with lock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.readline()
"""
    command, environment = [sys.executable, "-c", script, str(run)], {**os.environ, "PYTHONPATH": str(ROOT)}
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, **pipes) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def try_lock(run: Path) -> None:
    with lock(run):
        pass


def test_the_lock_names_its_holder_and_ends_with_the_process() -> None:
    run = make_run("runs/a")
    with holder(run) as other:
        for _ in range(2):
            with pytest.raises(RunLockedError, match=rf"^run a is in use by process {other.pid} on \S+$"):
                try_lock(run)
        with pytest.raises(RunExistsError):
            start("a")
        other.kill()
        other.wait()
        try_lock(run)


def test_the_lock_holds_within_a_process_and_ends_with_an_error() -> None:
    run = make_run("runs/a")
    with lock(run):
        with pytest.raises(RunLockedError, match=f"in use by process {os.getpid()} "):
            try_lock(run)
        assert is_training(run)
    with pytest.raises(ZeroDivisionError), lock(run):
        _ = 1 / 0
    try_lock(run)
    assert not is_training(run), "although this process lives on"
    (run / LOCK).write_text(f"process {os.getpid()} on {platform.node()}", encoding="utf-8")
    assert not is_training(run), "a killed process had the number of this one"
    try_lock(run)


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x1b[2J\nsecond line"])
def test_a_strange_lock_file_is_shown_in_one_printable_line(content: bytes) -> None:
    run = make_run("runs/a")
    with lock(run):
        (run / LOCK).write_bytes(content)
        with pytest.raises(RunLockedError) as error:
            try_lock(run)
    assert str(error.value).isprintable()
    assert content or "another process" in str(error.value)


@pytest.mark.parametrize(
    "name",
    [
        *("config.yaml", "metrics.jsonl", "log.txt", "tensorboard", LOCK),
        *("checkpoints", "checkpoints/x", "frames", "frames/step-00000001"),
    ],
)
def test_training_does_not_follow_a_link_out_of_the_run(tmp_path: Path, name: str) -> None:
    run, outside = make_run("runs/a", (5,)), tmp_path / "outside"
    shutil.rmtree(run / name) if (run / name).is_dir() else (run / name).unlink(missing_ok=True)
    (run / name).parent.mkdir(exist_ok=True)
    (run / name).symlink_to(outside)
    with pytest.raises(UserError, match="is neither a file nor a folder"):
        try_lock(run)
    assert not outside.exists()


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX")
def test_a_pipe_instead_of_the_lock_is_refused() -> None:
    run = make_run("runs/a")
    os.mkfifo(run / LOCK)
    with pytest.raises(UserError, match="is neither a file nor a folder"):
        try_lock(run)


# --- what runs record --------------------------------------------------------------------------------


def test_one_damaged_run_does_not_break_the_list_of_runs(cli: Cli) -> None:
    make_run("runs/a", (5, 10), touched=3e8)
    make_run("runs/empty", touched=4e8)
    damaged = make_run("runs/damaged", (7,), touched=5e8)
    (step_folder(damaged, 7) / METADATA).write_bytes(b"\xff\x00")
    make_run("runs/z", (3,), touched=8e8)
    rows = [tuple(row.values()) for row in cli("runs", "--json").json]
    assert rows == [
        ("a", "", "abc", 7, 10, 1.5, 3e8, "f", None),
        ("empty", "", None, None, None, None, 4e8, None, None),
        ("damaged", "damaged", None, None, 7, None, 5e8, None, None),
        ("z", "", "abc", 7, 3, 1.5, 8e8, "f", None),
    ]


def test_each_start_is_recorded() -> None:
    run = make_run("runs/a")
    environment = Environment(device="cpu", dtype="float32", compile=False, threads=1)
    record_start(run, 0, environment, {"command": ["minigpt", "train"]})
    record_start(run, 500, environment, {"command": ["minigpt", "train", "--resume", "a"], "steps": 9})
    first, second = map(json.loads, (run / "environment.jsonl").read_text(encoding="utf-8").splitlines())
    assert (first["step"], second["step"]) == (0, 500)
    assert second["steps"] == 9
    assert second["command"] == ["minigpt", "train", "--resume", "a"]
    assert {"started", "host", "system", "minigpt", "python", "torch", "threads"} <= first.keys()


def test_the_date_of_a_checkpoint_is_that_of_the_last_start_before_it(tmp_path: Path) -> None:
    assert last_start(tmp_path, 10) == ""
    starts = [
        '{"step": 0, "started": "2026-11-05T10:37:58+00:00"}', "[1]", "not JSON", '{"step": "1", "started": "2026"}',
        '{"step": 6, "started": 5}', '{"step": 8, "started": "2026-12-24T00:00:00+00:00"}',
    ]  # fmt: skip
    (tmp_path / "environment.jsonl").write_text("\n".join(starts), encoding="utf-8")
    assert [last_start(tmp_path, step) for step in (0, 4, 8, 9)] == [
        "", "5 November 2026", "5 November 2026", "24 December 2026",
    ]  # fmt: skip
