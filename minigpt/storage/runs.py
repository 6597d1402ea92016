"""Run folders: names, locks and checkpoints. For the layout, see minigpt/paths.py."""

import itertools
import os
import platform
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

from minigpt.errors import CheckpointError, RunExistsError, RunLockedError, RunNotFoundError, UserError, escape
from minigpt.files import (
    is_temporary,
    make_folders,
    open_within,
    read_within,
    remove,
    remove_abandoned,
    sync,
    withdraw,
)
from minigpt.paths import CHECKPOINTS, FRAMES, LOCK, RUN_FILES, RUNS, is_run, names_in
from minigpt.storage.metadata import METADATA, TrainState, read_metadata

RESERVED = ("last", "best", "auto")
# --- find runs ---------------------------------------------------------------------------------------


def all_runs(root: Path = RUNS) -> list[Path]:
    """Return the runs in `root` that can be read, with the most recently trained last."""
    folders: list[Path] = []
    for name in names_in(root):
        with suppress(OSError):  # such as lost+found, or the run of another user
            if is_run(root / name):
                folders.append(root / name)
    return sorted(folders, key=last_trained)


def last_trained(run: Path) -> float:
    """Return when a run was last trained, in seconds since 1970."""
    files = (run / "metrics.jsonl", run / "config.yaml", run / CHECKPOINTS)
    return next((path.stat().st_mtime for path in files if path.exists()), 0.0)


def find_run(name: str, root: Path = RUNS) -> Path:
    """Return the folder of a run. `name` is its name in `root`, its folder or "last". Raises UserError."""
    runs = all_runs(root)
    if name == "last" and runs:
        return runs[-1]
    for folder in (root / name, Path(name)) if os.path.basename(name) == name else (Path(name),):
        if is_run(folder):
            return folder
    run, which = split_step(name)
    if is_checkpoint(name) or (which and (is_run(root / run) or is_run(Path(run)))):
        raise UserError(f"{escape(name)} is a checkpoint; give the name of its run")
    problems = [] if name == "last" else [f"no run is named '{escape(name)}'"]
    problems += [] if runs else [f"there are no runs in {escape(root.absolute())}"]
    raise RunNotFoundError("; ".join(problems), tuple(run.name for run in runs[-8:]), name)


def split_step(name: str) -> tuple[str, str | None]:
    """Split "RUN@WHICH" into the run and which of its checkpoints is meant: a step, "best", "last" or None."""
    folder, last = os.path.split(name)
    run, _, which = last.rpartition("@")
    return (os.path.join(folder, run), which) if run and which and not os.path.lexists(name) else (name, None)


def find_checkpoint(name: str, which: str | int | None = None, root: Path = RUNS) -> Path:
    """Return a checkpoint folder. `name` is the folder itself, or a run as in `find_run`, perhaps with "@WHICH".

    `which` is "best" (the default), "last" or the step of a checkpoint or frame.

    Raises:
        RunNotFoundError: There is no such run.
        CheckpointError: There is no such checkpoint.
    """
    if which is None:
        name, which = split_step(name)
    if which is None and is_checkpoint(name):
        return Path(name)
    if name == "last":  # skip runs that ended before their first checkpoint
        name = next((run.name for run in reversed(all_runs(root)) if checkpoint_steps(run)), name)
    run = find_run(name, root)
    steps = checkpoint_steps(run)
    if not steps:
        raise CheckpointError(f"run {escape(run.name)} has no checkpoint yet")
    if which in (None, "best"):
        return step_folder(run, best_step(run))
    if which == "last":
        return step_folder(run, steps[-1])
    saved = saved_steps(run)
    named = [folder for step, folder in saved.items() if str(which) in (str(step), f"{step:08d}")]
    if not named:
        listed = ", ".join(map(str, saved))
        raise CheckpointError(f"run {escape(run.name)} has no checkpoint {escape(which)}; use {listed}, best or last")
    return named[0]


# --- the checkpoints of a run ------------------------------------------------------------------------


def is_checkpoint(folder: str | Path) -> bool:
    """Return whether `folder` is the folder of a checkpoint, in a run or copied out of it."""
    return os.path.isfile(Path(folder) / METADATA)


def step_folder(run: Path, step: int, kind: str = CHECKPOINTS) -> Path:
    """Return the folder of the checkpoint at `step`, or of the frame if `kind` is FRAMES."""
    return run / kind / f"step-{step:08d}"


def checkpoint_steps(run: Path, kind: str = CHECKPOINTS) -> list[int]:
    """Return the steps of a run's checkpoints or frames, sorted."""
    names = (name for name in names_in(run / kind) if re.fullmatch("step-(?!0[0-9]{8})[0-9]{8,19}", name))
    return sorted(int(name[5:]) for name in names)


def saved_steps(run: Path) -> dict[int, Path]:
    """Return the folder of each step whose weights a run has, sorted: the step's checkpoint, or else its frame."""
    folders = {
        step: step_folder(run, step, kind) for kind in (FRAMES, CHECKPOINTS) for step in checkpoint_steps(run, kind)
    }
    return dict(sorted(folders.items()))


def newest_step(run: Path) -> int | None:
    """Return the step of the newest checkpoint, or None."""
    return max(checkpoint_steps(run), default=None)


def best_step(run: Path) -> int:
    """Return the step of the checkpoint with the lowest validation loss, which the newest checkpoint records.

    Raises:
        CheckpointError: The newest checkpoint is damaged, or the best checkpoint is missing.
    """
    steps = checkpoint_steps(run)
    newest = step_folder(run, steps[-1])
    try:
        best = read_metadata(newest).state.best_checkpoint
    except UserError as error:
        if not os.path.lexists(newest):  # training has pruned it after saving a newer one
            return best_step(run)
        problem = f"only the newest checkpoint records which checkpoint is the best, and it is damaged: {error}"
        raise CheckpointError(problem, run) from error
    if best not in steps:
        raise CheckpointError(f"checkpoint {best} of run {escape(run.name)} is missing", run)
    return best


def repair(run: Path, state: TrainState) -> list[Path]:
    """Remove what a killed save left behind, before the run resumes from `state`.

    Quarantine checkpoints of later steps and return their new paths. Forget the best loss if its checkpoint is missing.
    Remove the frames of later steps: the run writes them again.
    """
    for folder in (run, run / CHECKPOINTS, run / FRAMES):
        remove_abandoned(folder, age=0)
    for step in checkpoint_steps(run, FRAMES):
        if step > state.step:
            withdraw(step_folder(run, step, FRAMES))
    later = [step_folder(run, step) for step in checkpoint_steps(run) if step > state.step]
    moved = [path.rename(path.with_name(f"quarantined-{path.name}-{uuid4().hex[:8]}")) for path in later]
    if state.best_loss is not None and state.best_step not in checkpoint_steps(run):
        state.best_loss, state.best_step = None, 0  # pruned for a better one that is lost
    return moved


# --- start a run -------------------------------------------------------------------------------------


@contextmanager
def new_run(name: str | None, stem: str) -> Iterator[Path]:
    """Create, lock and yield the folder of a new run: `name`, or `stem` plus the next free number.

    Remove the folder if the block raises before any training, unless the error names a checkpoint. Raise UserError
    if the name is taken or not allowed.
    """
    if name is None:
        folder = _create_numbered(stem)
    else:
        check_name(name)
        folder = RUNS / name
        make_folders(folder)
    with lock(folder):
        if name is not None:
            check_name(name)  # another process may have trained it meanwhile
        try:
            yield folder
        except BaseException as error:
            if not _is_worth_keeping(folder, error):
                _discard(folder)
            raise


def _is_worth_keeping(folder: Path, error: BaseException) -> bool:
    """Return whether the start of a run, which ended with `error`, has left anything to resume."""
    metrics = folder / "metrics.jsonl"
    is_trained = (metrics.exists() and metrics.stat().st_size) or newest_step(folder)
    return bool(is_trained or getattr(error, "saved_step", None) is not None)


def _discard(folder: Path) -> None:
    """Remove the files of a run, and then its folder if nothing else is in it."""
    for name in RUN_FILES.intersection(names_in(folder)):
        remove(folder / name)
    with suppress(OSError):  # someone has added or opened a file
        folder.rmdir()


def remove_run(run: Path) -> None:
    """Delete a run.

    Raises:
        RunLockedError: Another process uses the run.
        UserError: The folder has files that minigpt did not write. Nothing is deleted.
    """
    if others := [name for name in names_in(run) if name not in RUN_FILES]:
        example = escape(min(others))
        raise UserError(
            f"kept {escape(run)}, which has files that minigpt did not write; first move {example} elsewhere"
        )
    with lock(run):
        _discard(run)
    _discard(run)  # Windows cannot remove a locked file


def _create_numbered(stem: str) -> Path:
    """Create the folder of a run named `stem` and the next free number, and return it."""
    make_folders(RUNS)
    for number in itertools.count(1):
        with suppress(FileExistsError):
            (folder := RUNS / f"{stem}-{number}").mkdir()
            break
    sync(RUNS)
    return folder


def check_name(name: str) -> None:
    """Raise UserError if a new run cannot have this name."""
    check_form(name)
    folder = RUNS / name
    # A process that was killed before its first checkpoint leaves at most these names.
    is_empty = folder.is_dir() and set(names_in(folder)) <= {LOCK, CHECKPOINTS}
    is_empty = is_empty and all(map(is_temporary, names_in(folder / CHECKPOINTS)))
    if os.path.lexists(folder) and not is_empty:
        raise RunExistsError(f"run '{escape(name)}' already exists", folder, bool(checkpoint_steps(folder)))


def check_form(name: str) -> None:
    """Raise UserError if no run can have this name."""
    if not re.fullmatch(r"\w[\w.+ -]*", name) or name in RESERVED:
        allowed = "letters, digits, '_', and after the first character '-', '.', '+' and spaces"
        raise UserError(f"'{escape(name)}' is not a valid run name: use {allowed}; not {', '.join(RESERVED)}")


@contextmanager
def lock(run: Path) -> Iterator[None]:
    """Lock a run folder against other processes.

    Raises:
        RunLockedError: Another process uses the run.
        UserError: The folder contains a link or a special file: training would write elsewhere.
    """
    from filelock import FileLock, Timeout  # only here: it imports asyncio, which is slow

    for path in (
        *(run / name for name in names_in(run) if name in RUN_FILES),
        *(run / CHECKPOINTS).glob("*"),
        *(run / FRAMES).glob("*"),
    ):
        if path.is_symlink() or (path.exists() and not (path.is_file() or path.is_dir())):
            raise UserError(f"{escape(path)} is neither a file nor a folder")
    file = run / LOCK
    try:
        with FileLock(file, timeout=0.2):  # seconds: `is_training` holds the lock for an instant
            with suppress(OSError):  # Windows cannot write to a locked file
                file.write_text(f"process {os.getpid()} on {platform.node()}", "utf-8", "backslashreplace")
            try:
                yield
            finally:
                with suppress(OSError):
                    os.truncate(file, 0)  # this process may live on
    except Timeout as error:
        holder = "another process"
        with suppress(UserError):
            holder = read_within(file, run, 300).decode("utf-8", "replace") or holder
        raise RunLockedError(f"run {escape(run.name)} is in use by {escape(holder)}") from error


def is_training(run: Path) -> bool:
    """Return whether a process holds the lock of a run. Always False on Windows."""
    with suppress(UserError), open_within(run / LOCK, run) as file:
        if sys.platform != "win32" and file.read(1):  # empty if the last process released the lock
            import fcntl

            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # until the file is closed
            except BlockingIOError:
                return True
    return False
