"""Runs on disk: their folders, names and checkpoints, found without loading any of them.

runs/NAME/
  config.yaml  environment.json  metrics.jsonl  tensorboard/
  checkpoints/step-00000500/  last  best
"""

import hashlib
import itertools
import json
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

from minigpt import __version__
from minigpt.errors import UserError, did_you_mean, reason, shown

RUNS = Path("runs")
CHECKPOINTS = "checkpoints"
META = "meta.json"
RESERVED = {"last", "best"}


def step_folder(run: Path, step: int) -> Path:
    """Return where the checkpoint of `step` is kept."""
    return run / CHECKPOINTS / f"step-{step:08d}"


def checkpoint_steps(run: Path) -> list[int]:
    """Return the steps of the published checkpoints of a run, in order."""
    folders = [path for path in (run / CHECKPOINTS).glob("step-*") if (path / META).is_file()]
    return sorted(int(folder.name[5:]) for folder in folders if re.fullmatch(r"step-[0-9]{8,}", folder.name))


def all_runs(root: Path = RUNS) -> list[Path]:
    """Return the run folders under `root`, the one touched last at the end."""
    folders = [path.parent for path in root.glob("*/config.yaml")] if root.is_dir() else []
    return sorted(folders, key=_touched)


def find_run(name: str, root: Path = RUNS) -> Path:
    """Return the run folder that `name` means: a folder, a name under `root`, or "last".

    Raises UserError when there is none, with the nearest name.
    """
    runs = all_runs(root)
    if name == "last":
        if not runs:
            raise UserError(f"there is no run in {root.absolute()} yet; 'minigpt train' starts one")
        return runs[-1]
    for folder in (root / name, Path(name)):
        if (folder / "config.yaml").is_file() and not (folder / META).is_file():
            return folder
    if (Path(name) / META).is_file():
        raise UserError(f"{shown(name)} is a single checkpoint; this needs the run that it belongs to")
    names = [run.name for run in runs]
    hint = did_you_mean(name, names) or f"; runs here: {shown(', '.join(names[-8:])) or 'none'}"
    raise UserError(f"no run is called '{shown(name)}'{hint}")


def find_checkpoint(name: str, which: str | None = None, root: Path = RUNS) -> Path:
    """Return the checkpoint folder that `name` means: a checkpoint folder itself, or one of a run's.

    `which` is "best" (the default), "last" or a step. Raises UserError when there is none.
    """
    folder = Path(name)
    if (folder / META).is_file():
        if which is not None:
            raise UserError(f"{name} is a single checkpoint; --checkpoint {which} needs a run")
        return folder
    if name == "last":  # a run that ended before its first checkpoint does not hide the one before
        name = next((run.name for run in reversed(all_runs(root)) if checkpoint_steps(run)), name)
    run, which = find_run(name, root), which or "best"
    steps = checkpoint_steps(run)
    if not steps:
        raise UserError(f"run {run.name} has no checkpoint yet")
    if which in RESERVED:
        return step_folder(run, pointed_step(run, which) or steps[-1])
    if not which.isdecimal():
        raise UserError(f"--checkpoint {shown(which)}: expected best, last or a step")
    if int(which) not in steps:
        raise UserError(f"run {run.name} has no checkpoint of step {which}; it has {', '.join(map(str, steps))}")
    return step_folder(run, int(which))


def pointed_step(run: Path, pointer: str) -> int | None:
    """Return the step that the pointer file "last" or "best" names, or None where it names no checkpoint."""
    try:
        step = int((run / CHECKPOINTS / pointer).read_text(encoding="utf-8").strip().removeprefix("step-"))
    except (OSError, ValueError):
        return None
    return step if step in checkpoint_steps(run) else None


def new_run(name: str | None, stem: str, root: Path = RUNS) -> Path:
    """Make and return the folder of a new run: `name`, or `stem` with the next free number.

    Raises UserError when the name is taken or is no name, or the folder cannot be made.
    """
    if name is not None and (not re.fullmatch(r"\w[\w.+ -]*", name) or name in RESERVED):
        allowed = "letters, digits, '-', '_' and '.', and not 'last' or 'best'"
        raise UserError(f"'{shown(name)}' cannot name a run: use {allowed}")
    folders = (root / f"{stem}-{number}" for number in itertools.count(1)) if name is None else [root / name]
    try:
        root.mkdir(parents=True, exist_ok=True)
        for folder in folders:
            if not os.path.lexists(folder):
                with suppress(FileExistsError):  # another process was faster
                    folder.mkdir()
                    return folder
    except OSError as error:
        raise UserError(f"cannot make a run folder in {root.absolute()}: {reason(error)}") from error
    raise UserError(f"run '{name}' exists; go on with it: minigpt train --resume {name}, or choose another --name")


def record_start(run: Path, step: int, command: Sequence[str], device: str) -> None:
    """Add to environment.json what this run was started or resumed with, so that it can be explained later."""
    path = run / "environment.json"
    try:
        starts = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []
    except ValueError:
        starts = None
    if not isinstance(starts, list):
        raise UserError(f"{path} is damaged; move it away to go on")
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
    git, root = shutil.which("git"), Path(__file__).parent.parent
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


def summaries(root: Path = RUNS) -> Iterator[RunSummary]:
    """Yield a summary of each run under `root`, the one touched last at the end."""
    for run in all_runs(root):
        steps, meta = checkpoint_steps(run), {}
        with suppress(UserError):  # a damaged checkpoint leaves gaps in its line, and the other lines alone
            meta = read_meta(step_folder(run, steps[-1])) if steps else {}
        yield RunSummary(
            run.name,
            str(meta.get("corpus", {}).get("name", "")),
            meta.get("parameters"),
            steps[-1] if steps else None,
            meta.get("state", {}).get("best_loss"),
            _touched(run),
        )


def read_meta(checkpoint: Path) -> dict[str, Any]:
    """Return the meta.json of a checkpoint folder. Raises UserError when it is not as it was written."""
    path = checkpoint / META
    try:
        meta: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        intact = meta["sha256"][META] == meta_digest(meta)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {reason(error)}") from error
    except (ValueError, KeyError, TypeError):
        intact = False
    if not intact:
        raise UserError(f"checkpoint {checkpoint} is damaged: {META} changed since it was written")
    return meta


def meta_digest(meta: Mapping[str, Any]) -> str:
    """Return the sha256 of what a meta.json says, the hashes it holds left out."""
    facts = {key: value for key, value in meta.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def write_atomically(path: Path, text: str) -> None:
    """Put `text` into `path` so that a reader, or a crash, sees the old content or the new, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(temporary, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def _touched(run: Path) -> float:
    """Return when a run last trained; a resume that was refused is no such time."""
    files = (run / "metrics.jsonl", run / "config.yaml")
    return next((path.stat().st_mtime for path in files if path.exists()), 0.0)
