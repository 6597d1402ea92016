"""Runs on disk: their folders, names and checkpoints, found without loading any of them.

    runs/NAME/
      config.yaml  environment.json  metrics.jsonl  tensorboard/
      checkpoints/step-00000500/  last  best
"""

import difflib
import json
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

from minigpt import __version__
from minigpt.errors import UserError

RUNS = Path("runs")
CHECKPOINTS = "checkpoints"
META = "meta.json"
RESERVED = {"last", "best"}


def step_folder(run: Path, step: int) -> Path:
    """Return where the checkpoint of `step` is kept."""
    return run / CHECKPOINTS / f"step-{step:08d}"


def checkpoint_steps(run: Path) -> list[int]:
    """Return the steps of the published checkpoints of a run, in order."""
    names = (path.name for path in (run / CHECKPOINTS).glob("step-*") if (path / META).is_file())
    return sorted(int(name.removeprefix("step-")) for name in names if name.removeprefix("step-").isdigit())


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
    names = [run.name for run in runs]
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean '{near[0]}'?" if near else f"runs here: {', '.join(names) or 'none'}"
    raise UserError(f"no run is called '{name}'; {hint}")


def find_checkpoint(name: str, which: str | None = None, root: Path = RUNS) -> Path:
    """Return the checkpoint folder that `name` means: a checkpoint folder itself, or one of a run's.

    `which` is "best" (the default), "last" or a step. Raises UserError when there is none.
    """
    folder = Path(name)
    if (folder / META).is_file():
        if which is not None:
            raise UserError(f"{name} is a single checkpoint; --checkpoint {which} needs a run")
        return folder
    run, which = find_run(name, root), which or "best"
    steps = checkpoint_steps(run)
    if not steps:
        raise UserError(f"run {run.name} has no checkpoint yet")
    if which in RESERVED:
        return step_folder(run, pointed_step(run, which) or steps[-1])
    if not which.isdigit():
        raise UserError(f"--checkpoint {which}: expected best, last or a step")
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
        raise UserError(f"'{name}' cannot name a run: use letters, digits, '-', '_' and '.', and not 'last' or 'best'")
    number = 1
    while True:
        folder = root / (name or f"{stem}-{number}")
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError as error:
            if name is not None:
                raise UserError(
                    f"run '{name}' exists; go on with it: minigpt train --resume {name}, or choose another --name"
                ) from error
            number += 1
        except OSError as error:
            raise UserError(f"cannot make the run folder {folder}: {error.strerror or error}") from error


def record_start(run: Path, step: int, command: Sequence[str]) -> None:
    """Add to environment.json what this run was started or resumed with, so that it can be explained later."""
    path = run / "environment.json"
    starts = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []
    packages = ("torch", "numpy", "safetensors")
    starts.append(
        {
            "step": step,
            "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "command": list(command),
            "commit": _commit(),
            "host": platform.node(),
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
        steps = checkpoint_steps(run)
        meta = read_meta(step_folder(run, steps[-1])) if steps else {}
        yield RunSummary(
            run.name,
            str(meta.get("corpus", {}).get("name", "")),
            meta.get("parameters"),
            meta.get("step"),
            meta.get("state", {}).get("best_loss"),
            _touched(run),
        )


def read_meta(checkpoint: Path) -> dict[str, Any]:
    """Return the meta.json of a checkpoint folder. Raises UserError when it cannot be read."""
    try:
        meta = json.loads((checkpoint / META).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{checkpoint / META} cannot be read: {error}") from error
    if not isinstance(meta, dict):
        raise UserError(f"{checkpoint / META} is not a checkpoint's description")
    return meta


def write_atomically(path: Path, text: str) -> None:
    """Put `text` into `path` so that a reader, or a crash, sees the old content or the new, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with open(temporary, "w", encoding="utf-8", newline="\n") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def _touched(run: Path) -> float:
    times = (run / "metrics.jsonl", run / CHECKPOINTS, run / "config.yaml")
    return max((path.stat().st_mtime for path in times if path.exists()), default=0.0)
