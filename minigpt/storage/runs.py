"""Run folders: names, locks, and which checkpoints a run has. minigpt/paths.py shows the layout."""

import itertools
import json
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from uuid import uuid4

from minigpt import __version__
from minigpt.errors import (
    CheckpointError,
    RunExistsError,
    RunLockedError,
    RunNotFoundError,
    UserError,
    escape,
    reason,
)
from minigpt.files import leaves, make_folders, read_within, remove_abandoned, withdraw, write_atomically
from minigpt.paths import CHECKPOINTS, LOCK, RUN_FILES, RUNS, is_run
from minigpt.storage.metadata import METADATA, TrainState, step_name

POINTERS = ("last", "best")
ENVIRONMENT_LIMIT = 16 << 20
"""The largest environment.json, in bytes. Each start of the run adds about a kilobyte."""


# --- find runs ---------------------------------------------------------------------------------------


def all_runs(root: Path = RUNS) -> list[Path]:
    """Return the runs in `root`, the one trained last at the end."""
    return sorted(filter(is_run, root.glob("*")), key=last_trained)


def last_trained(run: Path) -> float:
    """Return when a run was trained last, in seconds since 1970."""
    files = (run / "metrics.jsonl", run / "config.yaml")
    return next((path.stat().st_mtime for path in files if path.exists()), 0.0)


def find_run(name: str) -> Path:
    """Return the folder of a run: `name` is its name, its folder, or "last".

    Raises:
        RunNotFoundError: There is no such run.
    """
    runs = all_runs()
    if name == "last" and runs:
        return runs[-1]
    is_path = os.path.basename(name) != name
    for folder in (Path(name), RUNS / name) if is_path else (RUNS / name, Path(name)):
        with suppress(OSError):  # the name is too long
            if is_run(folder):
                return folder
    if os.path.isfile(Path(name) / METADATA):
        raise UserError(f"{escape(name)} is a checkpoint; name the run")
    is_last = name == "last"
    problem = f"there is no run in {escape(RUNS.absolute())}" if is_last else f"no run has the name '{escape(name)}'"
    raise RunNotFoundError(problem, tuple(run.name for run in runs[-8:]))


def find_checkpoint(name: str, which: str | int | None = None) -> Path:
    """Return a checkpoint folder: `name` is the folder itself, or a run as in `find_run`.

    `which` is "best" (the default), "last" or a step.

    Raises:
        RunNotFoundError: There is no such run.
        CheckpointError: There is no such checkpoint.
    """
    folder = Path(name)
    if os.path.isfile(folder / METADATA):
        if which is not None:
            raise CheckpointError(f"{escape(name)} is a checkpoint, so it has no checkpoint {escape(which)}")
        return folder
    if name == "last":  # skip runs that ended before their first checkpoint
        name = next((run.name for run in reversed(all_runs()) if checkpoint_steps(run)), name)
    run, which = find_run(name), "best" if which is None else str(which)
    steps = checkpoint_steps(run)
    if not steps:
        raise CheckpointError(f"run {escape(run.name)} has no checkpoint yet")
    if which in POINTERS:
        pointed = pointed_step(run, which)
        return step_folder(run, steps[-1] if pointed is None else pointed)
    if not which.isdecimal() or int(which) not in steps:
        listed = ", ".join(map(str, steps))
        raise CheckpointError(f"run {escape(run.name)} has no checkpoint {escape(which)}, only {listed}, best and last")
    return step_folder(run, int(which))


# --- the checkpoints of a run ------------------------------------------------------------------------


def step_folder(run: Path, step: int) -> Path:
    """Return the folder of the checkpoint of `step`."""
    return run / CHECKPOINTS / step_name(step)


def checkpoint_steps(run: Path) -> list[int]:
    """Return the steps of a run's checkpoints, in order."""
    names = (path.name for path in (run / CHECKPOINTS).glob("step-*"))
    return sorted(int(name[5:]) for name in names if re.fullmatch(r"step-[0-9]{8,}", name))


def newest_step(run: Path) -> int | None:
    """Return the step of the newest checkpoint, or None."""
    return next(reversed(checkpoint_steps(run)), None)


def pointed_step(run: Path, pointer: str) -> int | None:
    """Return the step that the pointer `last` or `best` names, or None if there is no such checkpoint."""
    with suppress(UserError, ValueError):
        step = int(read_within(run / CHECKPOINTS / pointer, run, 100).decode().strip().removeprefix("step-"))
        return step if step in checkpoint_steps(run) else None
    return None


def point(run: Path, state: TrainState) -> None:
    """Write the pointers `last` and `best`."""
    best = state.best_checkpoint if state.best_checkpoint in checkpoint_steps(run) else state.step
    for name, step in (("last", state.step), ("best", best)):
        write_atomically(run / CHECKPOINTS / name, f"{step_name(step)}\n")


def prune(run: Path, state: TrainState, keep_last: int) -> None:
    """Remove all checkpoints but the best and the newest `keep_last`."""
    for step in checkpoint_steps(run)[:-keep_last]:
        if step not in (state.best_checkpoint, state.step):
            withdraw(step_folder(run, step))


def repair(run: Path, state: TrainState) -> list[Path]:
    """Complete what a killed save left undone, before the run is resumed from `state`.

    Checkpoints of later steps are quarantined. Return their new paths.
    """
    for folder in (run, run / CHECKPOINTS):
        remove_abandoned(folder, age=0)
    steps, quarantined = checkpoint_steps(run), []
    for step in steps:
        if step > state.step:
            unique = f"quarantined-{step_name(step)}-{uuid4().hex[:8]}"
            quarantined.append(step_folder(run, step).rename(run / CHECKPOINTS / unique))
    if state.step in steps:
        point(run, state)
    return quarantined


# --- start a run -------------------------------------------------------------------------------------


@contextmanager
def new_run(name: str | None, stem: str) -> Iterator[Path]:
    """Create and lock the folder of a new run: `name`, or `stem` and the next free number.

    The folder is removed if the block raises before anything was trained.

    Raises:
        RunExistsError: The name is taken.
        UserError: The name is not allowed, or the folder cannot be created.
    """
    if name is not None:
        check_name(name)
    folders = [RUNS / name] if name else (RUNS / f"{stem}-{number}" for number in itertools.count(1))
    with ExitStack() as held:
        folder = next((folder for folder in folders if _claim(folder, held)), None)
        if folder is None:
            raise _exists(RUNS / str(name))
        try:
            yield folder
        except BaseException:
            metrics = folder / "metrics.jsonl"
            if not checkpoint_steps(folder) and not (metrics.is_file() and metrics.stat().st_size):
                held.close()  # Windows cannot remove an open file
                shutil.rmtree(folder)
            raise


def check_name(name: str) -> None:
    """Raise UserError if a new run cannot have this name."""
    if not re.fullmatch(r"\w[\w.+ -]*", name) or name in POINTERS:
        allowed = "letters, digits, '_', and after the first character '-', '.', '+' and spaces; not 'last' or 'best'"
        raise UserError(f"'{escape(name)}' cannot be the name of a run: use {allowed}")
    if not _is_free(RUNS / name):
        raise _exists(RUNS / name)


def _exists(run: Path) -> RunExistsError:
    return RunExistsError(f"run '{escape(run.name)}' exists", run, bool(checkpoint_steps(run)))


def _claim(folder: Path, held: ExitStack) -> bool:
    """Create and lock `folder` if its name is free."""
    try:
        if not _is_free(folder):
            return False
        make_folders(folder)
        held.enter_context(lock(folder))
    except RunLockedError:
        return False
    except OSError as error:
        raise UserError(f"cannot create a run in {escape(folder.parent.absolute())}: {reason(error)}") from error
    if _is_free(folder):
        return True
    held.close()  # another process was faster, and has finished
    return False


def _is_free(folder: Path) -> bool:
    """Return whether nothing has this name, or only a folder that a killed process had just created."""
    is_folder = folder.is_dir() and not folder.is_symlink()
    return {path.name for path in folder.iterdir()} <= {LOCK} if is_folder else not os.path.lexists(folder)


@contextmanager
def lock(run: Path) -> Iterator[None]:
    """Lock a run folder against other processes.

    Raises:
        RunLockedError: Another process trains this run.
        UserError: The folder has a link through which training would write elsewhere, or cannot be locked.
    """
    from filelock import FileLock, Timeout  # here, because it imports asyncio, which readers of runs do not need

    for path in (*(run / name for name in RUN_FILES), *(run / CHECKPOINTS).glob("*")):
        if path.is_symlink() and leaves(path, run):
            raise UserError(f"{escape(path)} is a link out of the run's folder")
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise UserError(f"{escape(path)} is neither a file nor a folder")
    file = run / LOCK
    try:
        with FileLock(file, timeout=0):
            with suppress(OSError):  # Windows does not write to a locked file
                file.write_text(f"process {os.getpid()} on {platform.node()}", encoding="utf-8")
            yield
    except Timeout as error:
        holder = "another process"
        with suppress(UserError):
            holder = read_within(file, run, 300).decode("utf-8", "replace") or holder
        raise RunLockedError(f"run {escape(run.name)} is in use by {escape(holder)}") from error


def record_start(run: Path, step: int, command: Sequence[str], device: str) -> None:
    """Append to environment.json what the run is started or resumed with.

    Raises:
        UserError: The file is damaged.
    """
    path = run / "environment.json"
    try:
        starts = json.loads(read_within(path, run, ENVIRONMENT_LIMIT)) if os.path.lexists(path) else []
    except (ValueError, RecursionError):
        starts = None
    if not isinstance(starts, list):
        raise UserError(f"{escape(path)} is damaged; move it away to resume the run")
    starts.append({
        "step": step,
        "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": list(command),
        "commit": _commit(),
        "host": platform.node(),
        "device": device,
        "system": platform.platform(),
        "python": platform.python_version(),
        "minigpt": __version__,
        "torch": version("torch"),
    })  # fmt: skip
    write_atomically(path, json.dumps(starts, indent=1) + "\n")


def _commit() -> str | None:
    """Return the commit of the checkout that minigpt runs from, or None if it is installed."""
    root = Path(__file__).parents[2]
    git = ["git", f"--git-dir={root / '.git'}", "rev-parse", "HEAD"]
    with suppress(OSError):
        return subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip() or None
    return None
