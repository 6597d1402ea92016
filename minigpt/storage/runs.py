"""Runs on disk: their folders, names and checkpoints, found without loading any of them.

runs/NAME/
  config.yaml  environment.json  metrics.jsonl  tensorboard/
  checkpoints/step-00000500/  last  best
"""

import itertools
import json
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path

from minigpt import __version__
from minigpt.errors import RunLockedError, UserError, did_you_mean, escape, reason, shell_quote
from minigpt.files import LOCK, leaves, locked, make_folders, read_within, write_atomically
from minigpt.storage.metadata import META, read_metadata

RUNS = Path("runs")
CHECKPOINTS = "checkpoints"
QUARANTINED = "quarantined-"
"""How the names of checkpoints begin that a resume could not use and kept."""
RESERVED = {"last", "best"}
ENVIRONMENT_LIMIT = 16 << 20
"""Bytes that environment.json can have at most: one kilobyte for each start of the run."""
WRITTEN = ("config.yaml", "environment.json", "metrics.jsonl", "tensorboard", CHECKPOINTS, LOCK)
"""What training writes in a run's folder."""


def is_run(folder: Path) -> bool:
    """Return whether minigpt trains or trained here: what it writes is no text to learn from, and changes under it."""
    return all(os.path.isfile(folder / name) for name in ("config.yaml", "environment.json"))


def owner(file: Path) -> Path | None:
    """Return the run that keeps a file, if one does: what else lies in a run's folder is not its."""
    real = Path(os.path.realpath(file))
    return next((at for at in real.parents if real.relative_to(at).parts[0] in WRITTEN and is_run(at)), None)


def step_folder(run: Path, step: int) -> Path:
    """Return where the checkpoint of `step` is kept."""
    return run / CHECKPOINTS / f"step-{step:08d}"


def checkpoint_steps(run: Path) -> list[int]:
    """Return the steps of the published checkpoints of a run, in order."""
    before: set[Path] = set()
    while True:
        listed = {path for path in (run / CHECKPOINTS).glob("step-*") if re.fullmatch(r"step-[0-9]{8,}", path.name)}
        found = [int(path.name[5:]) for path in listed if (path / META).is_file() and not path.is_symlink()]
        if found or listed == before:
            return sorted(found)
        before = listed  # all of which may have been pruned since, and others be there


def written_checkpoints(run: Path) -> set[tuple[int, int]]:
    """Return the steps of a run's published checkpoints, and when each was written."""
    return {(step, (step_folder(run, step) / META).stat().st_mtime_ns) for step in checkpoint_steps(run)}


def all_runs(root: Path = RUNS) -> list[Path]:
    """Return the run folders under `root`, the one touched last at the end."""
    folders = [path.parent for path in root.glob("*/config.yaml")] if root.is_dir() else []
    return sorted((folder for folder in folders if is_run(folder) or was_started(folder)), key=_touched)


def as_argument(run: Path) -> str:
    """Return what to type for a run on the command line: its name, or its folder where that is elsewhere."""
    return shell_quote(run.name if run.parent == RUNS else str(run))


def find_run(name: str) -> Path:
    """Return the run folder that `name` means: a folder, a name in runs/, or "last".

    Raises UserError when there is none, with the nearest name.
    """
    runs = all_runs()
    if name == "last":
        if not runs:
            raise UserError(f"there is no run in {RUNS.absolute()} yet; 'minigpt train' starts one")
        return runs[-1]
    is_path = os.path.basename(name) != name
    for folder in (Path(name), RUNS / name) if is_path else (RUNS / name, Path(name)):
        if os.path.isfile(folder / "config.yaml") and not os.path.isfile(folder / META):
            return folder
    if os.path.isfile(Path(name) / META):  # False too where the name is too long for one
        raise UserError(f"{escape(name)} is a single checkpoint; this needs the run that it belongs to")
    names = [run.name for run in runs]
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    hint = did_you_mean(name, names) or f"; runs here: {escape(', '.join(names[-8:])) or 'none'}{more}"
    raise UserError(f"no run is called '{escape(name)}'{hint}")


def find_checkpoint(name: str, which: str | int | None = None) -> Path:
    """Return the checkpoint folder that `name` means: a checkpoint folder itself, or one of a run's.

    `which` is "best" (the default), "last" or a step. Raises UserError when there is none.
    """
    folder = Path(name)
    if os.path.isfile(folder / META):
        if which is not None:
            raise UserError(f"{name} is a single checkpoint; --checkpoint {which} needs a run")
        return folder
    if which is None and is_pointer(folder):
        name, which = str(folder.parent.parent), folder.name
    if name == "last":  # a run that ended before its first checkpoint does not hide the one before
        name = next((run.name for run in reversed(all_runs()) if checkpoint_steps(run)), name)
    run, which = find_run(name), "best" if which is None else str(which)
    steps = checkpoint_steps(run)
    if not steps:
        raise UserError(f"run {run.name} has no checkpoint yet")
    if which in RESERVED:
        pointed = pointed_step(run, which)
        return step_folder(run, steps[-1] if pointed is None else pointed)
    if not which.isdecimal():
        raise UserError(f"--checkpoint {escape(which)}: expected best, last or a step")
    if int(which) not in steps:
        raise UserError(f"run {run.name} has no checkpoint of step {which}; it has {', '.join(map(str, steps))}")
    return step_folder(run, int(which))


def is_pointer(file: Path) -> bool:
    """Return whether this is the file "last" or "best" of a run, which names a checkpoint of it."""
    return file.name in RESERVED and file.parent.name == CHECKPOINTS


def pointed_step(run: Path, pointer: str) -> int | None:
    """Return the step that the pointer file "last" or "best" names, or None where it names no checkpoint."""
    try:
        step = int(read_within(run / CHECKPOINTS / pointer, run, 100).decode().strip().removeprefix("step-"))
    except (UserError, ValueError):
        return None
    return step if step in checkpoint_steps(run) else None


@contextmanager
def new_run(name: str | None, stem: str) -> Iterator[Path]:
    """Make the folder of a new run, `name` or `stem` with the next free number, and keep it locked for the block.

    It goes again when the block raises before training wrote anything. Raises UserError when the name is
    taken or is no name, or the folder cannot be made.
    """
    if name is not None:
        refuse_name(name)
    candidates = [RUNS / name] if name else (RUNS / f"{stem}-{number}" for number in itertools.count(1))
    with ExitStack() as held:
        folder = next((folder for folder in candidates if _claim(folder, held)), None)
        if folder is None:
            raise _taken(str(name))
        try:
            yield folder
        except BaseException:
            if not was_started(folder):  # its name is free again
                if os.name == "nt":
                    held.close()  # Windows removes no file that is open
                shutil.rmtree(folder)
            raise


def refuse_name(name: str) -> None:
    """Raise UserError for what cannot name a new run: no name, or one that a run has."""
    if not re.fullmatch(r"\w[\w.+ -]*", name) or name in RESERVED:
        allowed = "letters, digits, '_' and, after the first, '-', '.', '+' and spaces, and not 'last' or 'best'"
        raise UserError(f"'{escape(name)}' cannot name a run: use {allowed}")
    if _is_taken(RUNS / name):
        raise _taken(name)


def _taken(name: str) -> UserError:
    is_trained = checkpoint_steps(RUNS / name)
    resume = f"go on with it: minigpt train --resume {shell_quote(name)}, or " if is_trained else ""
    return UserError(f"run '{name}' exists; {resume}choose another --name")


def _claim(folder: Path, held: ExitStack) -> bool:
    """Make `folder` and lock it in `held`; return False when it is another's. A start that was killed left it empty."""
    try:
        make_folders(folder.parent)
        if _is_taken(folder):
            return False
        make_folders(folder)
        held.enter_context(lock(folder))
    except RunLockedError:
        return False
    except OSError as error:
        raise UserError(f"cannot make a run folder in {escape(folder.parent.absolute())}: {reason(error)}") from error
    if _is_taken(folder):  # another process was faster
        held.close()
        return False
    return True


def _is_taken(folder: Path) -> bool:
    """Return whether a new run in `folder` would lose something: all but what a start leaves that was killed."""
    if not folder.is_dir() or folder.is_symlink():
        return os.path.lexists(folder)
    found = {path.name for path in folder.iterdir()}
    unfinished = tuple(f".{name}." for name in WRITTEN)
    foreign = any(name not in WRITTEN and not name.startswith(unfinished) for name in found)
    ours = not found or LOCK in found
    curves = "metrics.jsonl" not in found and any(folder.glob("tensorboard/*"))
    return foreign or not ours or was_started(folder) or CHECKPOINTS in found or curves


def was_started(run: Path) -> bool:
    """Return whether a run has curves or checkpoints that a new run of its name would lose."""
    curves = run / "metrics.jsonl"
    return bool(checkpoint_steps(run)) or (curves.is_file() and curves.stat().st_size > 0)


@contextmanager
def lock(run: Path) -> Iterator[None]:
    """Keep other processes from training or resuming `run` for the length of the block.

    Raises UserError when one is at it, or when the folder holds a link to somewhere else, through which
    training would write there.
    """
    for path in (*(run / name for name in WRITTEN), *(run / CHECKPOINTS).glob("*")):
        if path.is_symlink() and leaves(path, run):
            raise UserError(f"{escape(path)} is a link out of the run's folder, and training would write through it")
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise UserError(f"{escape(path)} is neither a file nor a folder")
    with locked(run, f"run {escape(run.name)}"):
        yield


def record_start(run: Path, step: int, command: Sequence[str], device: str) -> None:
    """Add to environment.json what this run was started or resumed with, so that it can be explained later."""
    path = run / "environment.json"
    try:
        starts = json.loads(read_within(path, run, ENVIRONMENT_LIMIT)) if os.path.lexists(path) else []
    except (ValueError, RecursionError):
        starts = None
    if not isinstance(starts, list):
        raise UserError(f"{escape(path)} is damaged; move it away to go on")
    packages = ("torch", "numpy", "safetensors")
    starts.append(
        {
            "step": step,
            "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "command": list(command),
            "commit": _commit(),
            "host": platform.node(),
            "device": device,
            "system": platform.platform(),
            "processor": platform.processor() or platform.machine(),
            "cpu_count": os.cpu_count(),
            "versions": {
                "minigpt": __version__,
                "python": platform.python_version(),
                **{name: version(name) for name in packages},
            },
        }
    )
    write_atomically(path, json.dumps(starts, indent=1) + "\n")


def _commit() -> str | None:
    """Return the commit of the checkout that minigpt runs from, or None where it is installed."""
    git, root = shutil.which("git"), Path(__file__).parents[2]
    if git is None or not (root / ".git").exists():
        return None
    found = subprocess.run([git, "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return found.stdout.strip() or None


@dataclass(frozen=True)
class RunSummary:
    """One line of `minigpt runs`."""

    name: str
    corpus: str
    parameters: int | None
    step: int | None
    best_loss: float | None
    touched: float
    """Seconds since the epoch."""


def summaries() -> Iterator[RunSummary]:
    """Yield a summary of each run in runs/, the one touched last at the end."""
    for run in all_runs():
        steps, meta = checkpoint_steps(run), None
        with suppress(UserError):  # a damaged checkpoint leaves gaps in its line, and the other lines alone
            meta = read_metadata(step_folder(run, steps[-1])) if steps else None
        yield RunSummary(
            run.name,
            meta.corpus.name if meta else "",
            meta.parameters if meta else None,
            steps[-1] if steps else None,
            meta.state.best_loss if meta else None,
            _touched(run),
        )


def _touched(run: Path) -> float:
    """Return when a run last trained; a resume that was refused is no such time."""
    files = (run / "metrics.jsonl", run / "config.yaml")
    return next((path.stat().st_mtime for path in files if path.exists()), 0.0)
