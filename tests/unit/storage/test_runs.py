"""Runs on disk: which folder a name means, which checkpoint, and a table that one damaged run does not break."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from minigpt.errors import UserError, shell_quote
from minigpt.storage.metadata import METADATA, digest
from minigpt.storage.runs import (
    all_runs,
    checkpoint_steps,
    find_checkpoint,
    find_run,
    lock,
    new_run,
    pointed_step,
    record_start,
    step_folder,
    summaries,
)

ROOT = Path(__file__).resolve().parents[3]
DESCRIPTION: dict[str, Any] = {
    "format": 1,
    "characters_seen": 100,
    "validation_loss": 1.75,
    "corpus": {"name": "abc", "fingerprint": "f"},
    "vocab_size": 5,
    "parameters": 7,
    "runtime": {"device": "cpu", "dtype": "float32", "compile": False, "threads": 1},
}


pytestmark = pytest.mark.usefixtures("empty_folder")


def make_run(path: str | Path, steps: tuple[int, ...] = (), touched: float = 1e9, **facts: Any) -> Path:
    """A run as it lies on disk, without tensors; the last of `steps` is pointed to by last, the first by best."""
    run = Path(path)
    run.mkdir(parents=True)
    (run / "config.yaml").write_text("", encoding="utf-8")
    (run / "environment.json").write_text("[]", encoding="utf-8")
    for step in steps:
        make_checkpoint(step_folder(run, step), step, **facts)
    if steps:
        (run / "checkpoints/last").write_text(f"{step_folder(run, steps[-1]).name}\n", encoding="utf-8")
        (run / "checkpoints/best").write_text(f"{step_folder(run, steps[0]).name}\n", encoding="utf-8")
    for part in (run / "config.yaml", run / "checkpoints"):
        if part.exists():
            os.utime(part, (touched, touched))
    return run


def make_checkpoint(folder: Path, step: int, **facts: Any) -> Path:
    folder.mkdir(parents=True)
    meta = {**DESCRIPTION, "step": step, "state": {"step": step, "best_loss": 1.5}, **facts}
    (folder / METADATA).write_text(json.dumps({**meta, "sha256": {METADATA: digest(meta)}}), encoding="utf-8")
    (folder / "config.yaml").write_text("", encoding="utf-8")
    return folder


# --- runs --------------------------------------------------------------------------------------------


def test_what_another_tool_keeps_in_runs_is_no_run() -> None:
    make_run("runs/ours")
    Path("runs/theirs").mkdir()
    Path("runs/theirs/config.yaml").write_text("lr: 1\n", encoding="utf-8")
    assert [run.name for run in all_runs()] == ["ours"]
    assert find_run("last") == Path("runs/ours")


def test_a_run_is_meant_by_its_name_its_folder_or_last(tmp_path: Path) -> None:
    make_run("runs/a", touched=3e8)
    make_run("runs/b", touched=5e8)
    make_run("runs/c", touched=4e8)
    outside = make_run("elsewhere/d", touched=9e8)
    assert find_run("a") == Path("runs/a")
    assert find_run("runs/a") == Path("runs/a")
    assert find_run(str(tmp_path / "runs/a")) == tmp_path / "runs/a"
    assert find_run("elsewhere/d") == outside
    assert find_run("last") == Path("runs/b")
    assert [run.name for run in all_runs()] == ["a", "c", "b"]
    (tmp_path / "runs/c/metrics.jsonl").touch()
    assert find_run("last") == Path("runs/c")


def test_a_run_that_failed_before_its_first_checkpoint_does_not_hide_the_one_before() -> None:
    make_run("runs/good", steps=(5,), touched=3e8)
    make_run("runs/failed", touched=5e8)
    assert find_checkpoint("last") == step_folder(Path("runs/good"), 5)


def test_a_run_is_touched_by_training_only() -> None:
    """A refused resume, which writes settings and puts them back, once made its run the last one."""
    make_run("runs/a", steps=(5,), touched=3e8)
    make_run("runs/b", steps=(5,), touched=5e8)
    for name, when in (("a", 3e8), ("b", 5e8)):
        (Path("runs") / name / "metrics.jsonl").touch()
        os.utime(Path("runs") / name / "metrics.jsonl", (when, when))
    (Path("runs/a/config.yaml")).touch()
    assert find_run("last") == Path("runs/b")


def test_a_name_under_runs_goes_before_a_folder_here() -> None:
    make_run("a")
    make_run("runs/a")
    assert find_run("a") == Path("runs/a")


@pytest.mark.parametrize("name", ["./a", "a/", f"..{os.sep}{{here}}{os.sep}a", f".{os.sep}a"])
def test_a_path_goes_before_a_name_under_runs(name: str) -> None:
    """A run in runs/ of the same name once was evaluated and resumed in its place."""
    make_run("a")
    make_run("runs/a")
    assert find_run(name.format(here=Path.cwd().name)).resolve() == Path("a").resolve()
    assert find_run("runs/a") == Path("runs/a")


def test_last_is_the_newest_even_where_a_folder_has_that_name() -> None:
    make_run("runs/last", touched=3e8)
    make_run("runs/b", touched=5e8)
    assert find_run("last") == Path("runs/b")
    assert find_run("runs/last") == Path("runs/last")


@pytest.mark.parametrize("name", ["läuft", "日本", "with space", "a.b+c-d_e", "1", "-dash"])
def test_odd_names_are_found(name: str) -> None:
    make_run(f"runs/{name}")
    assert find_run(name) == Path("runs") / name


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("shakespaere", r"no run is called 'shakespaere'; did you mean shakespeare\?"),
        ("xyz", "no run is called 'xyz'; runs here: quickstart-1, shakespeare"),
        ("", "no run is called ''; runs here: "),
        (".", r"no run is called '\.'; runs here: "),
        ("two\nlines", r"no run is called 'two\\nlines'; runs here: "),
        ("runs/shakespeare/checkpoints/step-00000005", "is a single checkpoint"),
    ],
)
def test_a_name_that_means_no_run_is_one_line(name: str, message: str) -> None:
    make_run("runs/quickstart-1", touched=3e8)
    make_run("runs/shakespeare", (5,), touched=4e8)
    with pytest.raises(UserError, match=message) as error:
        find_run(name)
    assert "\n" not in str(error.value)


def test_without_any_run_one_is_told_how_to_start() -> None:
    with pytest.raises(UserError, match=r"there is no run in .*runs yet; 'minigpt train' starts one"):
        find_run("last")
    with pytest.raises(UserError, match="no run is called 'a'; runs here: none"):
        find_run("a")
    assert all_runs() == []
    assert list(summaries()) == []


# --- checkpoints -------------------------------------------------------------------------------------


def test_a_checkpoint_is_meant_by_best_last_step_or_its_own_folder() -> None:
    run = make_run("runs/a", (5, 10, 15))
    for which, step in ((None, 5), ("best", 5), ("last", 15), ("10", 10), ("00000010", 10)):
        assert find_checkpoint("a", which) == step_folder(run, step)
    assert find_checkpoint("last", "last") == step_folder(run, 15)
    alone = make_checkpoint(Path("copy"), 3)
    assert find_checkpoint("copy") == alone
    assert find_checkpoint(str(step_folder(run, 10))) == step_folder(run, 10)
    for pointer, step in (("best", 5), ("last", 15)):  # as the tab key completes it
        assert find_checkpoint(str(run / "checkpoints" / pointer)) == step_folder(run, step)


@pytest.mark.parametrize(
    ("name", "which", "message"),
    [
        ("a", "11", "run a has no checkpoint of step 11; it has 5, 10"),
        ("a", "worst", "--checkpoint worst: expected best, last or a step"),
        ("a", "-5", "--checkpoint -5: expected best, last or a step"),
        ("a", "²", "--checkpoint ²: expected best, last or a step"),
        ("a", "5.0", "expected best, last or a step"),
        ("empty", None, "run empty has no checkpoint yet"),
        ("copy", "best", "copy is a single checkpoint; --checkpoint best needs a run"),
        ("b", None, "no run is called 'b'"),
    ],
)
def test_a_checkpoint_that_is_not_there_is_one_line(name: str, which: str | None, message: str) -> None:
    make_run("runs/a", (5, 10))
    make_run("runs/empty")
    make_checkpoint(Path("copy"), 3)
    with pytest.raises(UserError) as error:
        find_checkpoint(name, which)
    assert message in str(error.value)


def test_only_published_checkpoints_count() -> None:
    run = make_run("runs/a", (5, 100_000_000))
    folder = run / "checkpoints"
    for name in (".saving-step-00000009", "step-00000007 copy", "step-²²²²²²²²", "step-7", "step-"):
        make_checkpoint(folder / name, 7)
    (folder / "step-00000008").mkdir()  # without metadata.json: not whole
    (folder / "step-00000006").touch()
    assert checkpoint_steps(run) == [5, 100_000_000]


@pytest.mark.parametrize("content", ["", "step-00000099\n", "nonsense", "../../b", "step-²"])
def test_a_pointer_to_nothing_means_the_newest(content: str) -> None:
    run = make_run("runs/a", (5, 10))
    (run / "checkpoints/best").write_text(content, encoding="utf-8")
    (run / "checkpoints/last").unlink()
    assert pointed_step(run, "best") is None
    assert find_checkpoint("a") == find_checkpoint("a", "last") == step_folder(run, 10)


# --- new runs ----------------------------------------------------------------------------------------


def started(name: str | None = None) -> Path:
    """A new run that got as far as its first log line."""
    with new_run(name, "tiny") as folder:
        (folder / "metrics.jsonl").write_text('{"step": 0}\n', encoding="utf-8")
    return folder


def refused(name: str | None, files: Mapping[str, str] = MappingProxyType({})) -> None:
    """A start that wrote `files` and was refused then."""
    with new_run(name, "tiny") as folder:
        for file, content in files.items():
            (folder / file).write_text(content, encoding="utf-8")
        raise UserError("refused later")


def test_a_new_run_gets_the_next_free_number() -> None:
    assert [started().name for _ in range(3)] == ["tiny-1", "tiny-2", "tiny-3"]
    shutil.rmtree("runs/tiny-2")
    assert started().name == "tiny-2"
    assert started("läuft 2") == Path("runs/läuft 2")


@pytest.mark.parametrize(
    "name", ["last", "best", "", ".", "..", "a/b", "../a", ".hidden", "a\n", "-x", "a\\b", "a:b", " a"]
)
def test_a_name_that_cannot_be_a_folder_or_means_something_else_is_refused(name: str) -> None:
    with pytest.raises(UserError, match="cannot name a run: use letters, digits") as error, new_run(name, "tiny"):
        pass
    assert "\n" not in str(error.value)
    assert not Path("runs").exists()


def test_a_name_in_use_is_refused_with_the_way_to_resume_it() -> None:
    make_run("runs/a", (5,))
    Path("runs/file").touch()
    Path("runs/link").symlink_to("nowhere")
    Path("runs/my run").mkdir()
    Path("runs/my run/a file").touch()
    make_run("runs/b c", (5,))
    for name in ("a", "b c"):
        resume = (
            f"run '{name}' exists; go on with it: minigpt train --resume {shell_quote(name)}, or choose another --name"
        )
        with pytest.raises(UserError, match=f"^{resume}$"), new_run(name, "tiny"):
            pass
    for name in ("file", "link", "my run"):  # which nothing could go on with
        with pytest.raises(UserError, match=f"^run '{name}' exists; choose another --name$"), new_run(name, "tiny"):
            pass
    assert Path("runs/link").is_symlink()


@pytest.mark.parametrize("name", ["a", None])
def test_where_no_folder_can_be_made_it_is_one_line(name: str | None) -> None:
    """A numbered run once counted for ever where `runs` was a file on Windows."""
    Path("runs").touch()
    with pytest.raises(UserError, match=r"cannot make a run folder in .*runs: "), new_run(name, "tiny"):
        pass


EVENTS = "tensorboard/events.out.tfevents.1.host.1"


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "files",
    [
        ["notes.txt"],
        ["config.yaml"],
        ["config.yaml", "notes.txt"],
        [EVENTS],
        [".lock", "config.yaml", EVENTS],
        ["checkpoints/quarantined-step-00000005/metadata.json"],
        ["checkpoints/mine.txt"],
        ["checkpoints/step-00000005/metadata.json"],
        ["environment.json", "metrics.jsonl"],
    ],
    ids=" ".join,
)
def test_a_folder_that_holds_anything_of_the_users_is_never_taken(files: list[str]) -> None:
    for name in files:
        path = Path("runs/tiny-1", name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine\n", encoding="utf-8")
    before = contents(Path("runs"))
    with pytest.raises(UserError, match="run 'tiny-1' exists"):
        refused("tiny-1")
    with pytest.raises(UserError, match="refused later"):
        refused(None)
    assert contents(Path("runs")) == before
    assert not Path("runs/tiny-2").exists()


@pytest.mark.parametrize(
    "left",
    [
        [],
        [".lock"],
        [".lock", "config.yaml"],
        [".lock", ".config.yaml.77"],
        [".lock", "config.yaml", "environment.json", ".environment.json.77"],
        [".lock", "config.yaml", "environment.json", "metrics.jsonl"],
        [".lock", "config.yaml", "environment.json", "metrics.jsonl", "tensorboard/"],
        [".lock", "config.yaml", "environment.json", "metrics.jsonl", "tensorboard/", EVENTS],  # while it compiled
    ],
    ids=" ".join,
)
def test_a_start_that_was_killed_before_its_first_line_leaves_its_name_free(left: list[str]) -> None:
    """It once held the name for ever: neither to be resumed, for lack of a checkpoint, nor to be started."""
    folder = Path("runs/tiny-1")
    folder.mkdir(parents=True)
    for name in left:
        if name.endswith("/"):
            (folder / name).mkdir()
        else:
            (folder / name).write_text("" if name == "metrics.jsonl" else "x\n", encoding="utf-8")
    with new_run("tiny-1", "tiny") as taken:
        assert taken == folder
    with new_run(None, "tiny") as taken:
        assert taken == folder


@pytest.mark.parametrize("wrote", [False, True])
def test_a_start_that_fails_keeps_its_folder_only_where_training_wrote(wrote: bool) -> None:
    with pytest.raises(UserError, match="refused later"):
        refused("a", {"config.yaml": "x", "metrics.jsonl": "{}\n" if wrote else ""})
    assert Path("runs/a").exists() is wrote


def test_many_starts_at_once_get_a_name_each(tmp_path: Path) -> None:
    """Real processes, since a lock lets go of a process as a whole."""
    script = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from minigpt.storage.runs import new_run
sys.stdin.readline()
with new_run(None, "tiny") as folder:
    print(folder.name, flush=True)
    sys.stdin.readline()
"""
    command = [sys.executable, "-c", script]
    starts = [
        subprocess.Popen(command, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    names = []
    for start in starts:  # all have imported what they need and wait for the line that sets them going
        assert start.stdin
        start.stdin.write("go\n")
        start.stdin.flush()
    for start in starts:
        assert start.stdout
        names.append(start.stdout.readline().strip())
    for start in starts:
        start.communicate("end\n")
        assert start.returncode == 0
    assert sorted(names) == ["tiny-1", "tiny-2", "tiny-3"]


def test_a_run_in_training_is_refused_and_its_name_is_not_free() -> None:
    with new_run("a", "tiny") as folder:
        for way in (lambda: lock(folder), lambda: new_run("a", "tiny")):
            with pytest.raises(UserError) as error, way():
                pass
            assert "\n" not in str(error.value)
        with (
            pytest.raises(UserError, match=rf"run a is in use by process {os.getpid()} on .+: wait for it"),
            lock(folder),
        ):
            pass
    with lock(make_run("runs/b")):
        pass


@pytest.mark.parametrize(
    "name", ["config.yaml", "metrics.jsonl", "tensorboard", "checkpoints", "checkpoints/last", ".lock"]
)
def test_a_run_that_leads_out_of_its_folder_is_not_trained_in(tmp_path: Path, name: str) -> None:
    run = make_run("runs/a", (5,))
    path, outside = run / name, tmp_path / "outside"
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    path.symlink_to(outside)
    with pytest.raises(UserError, match="is a link out of the run's folder"), lock(run):
        pass
    assert not outside.exists()


# --- what is told about runs -------------------------------------------------------------------------


def test_the_table_has_a_line_for_each_run_and_damage_leaves_gaps_in_one_line_only() -> None:
    """One unreadable metadata.json once hid all other runs."""
    make_run("runs/a", (5, 10), touched=3e8)
    make_run("runs/empty", touched=4e8)
    flipped = make_run("runs/flipped", (7,), touched=5e8)
    description = step_folder(flipped, 7) / METADATA
    description.write_text(description.read_text(encoding="utf-8").replace("1.5", "1.7"), encoding="utf-8")
    binary = make_run("runs/binary", (8,), touched=6e8)
    (step_folder(binary, 8) / METADATA).write_bytes(b"\xff\x00")
    listed = make_run("runs/listed", (9,), touched=7e8)
    (step_folder(listed, 9) / METADATA).write_text("[1]", encoding="utf-8")
    make_run("runs/z", (3,), touched=8e8)
    rows = [(row.name, row.corpus, row.parameters, row.step, row.best_loss) for row in summaries()]
    assert rows == [
        ("a", "abc", 7, 10, 1.5),
        ("empty", "", None, None, None),
        ("flipped", "", None, 7, None),
        ("binary", "", None, 8, None),
        ("listed", "", None, 9, None),
        ("z", "abc", 7, 3, 1.5),
    ]
    assert [row.touched for row in summaries()] == [3e8, 4e8, 5e8, 6e8, 7e8, 8e8]


def test_each_start_is_added_to_the_environment_file() -> None:
    run = make_run("runs/a")
    record_start(run, 0, ["minigpt", "train"], "cpu")
    record_start(run, 500, ["minigpt", "train", "--resume", "a"], "cpu")
    first, second = json.loads((run / "environment.json").read_text(encoding="utf-8"))
    assert (first["step"], second["step"]) == (0, 500)
    assert second["command"] == ["minigpt", "train", "--resume", "a"]
    assert first["versions"].keys() == {"minigpt", "python", "torch", "numpy", "safetensors"}
    assert {"started", "commit", "host", "system", "processor", "cpu_count"} <= first.keys()


@pytest.mark.parametrize("content", ["", "{", "null", "5", '{"a": 1}'])
def test_an_environment_file_that_was_damaged_is_one_line_and_stays(content: str) -> None:
    path = make_run("runs/a") / "environment.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match=r"environment\.json is damaged; move it away to go on"):
        record_start(path.parent, 5, ["minigpt"], "cpu")
    assert path.read_text(encoding="utf-8") == content
