"""Check that a run is intact, and that it ends in the same state as a run without faults."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from processes import Launcher, Result

Item = TypeVar("Item")

UNREPEATABLE = ("time", "speed/memory_bytes", "speed/")
"""Metrics that differ from run to run, by the start of their tags."""
SMALL: dict[str, Any] = {
    "model.n_layer": 1,
    "model.n_embd": 16,
    "model.context": 16,
    "train.batch_size": 4,
    "train.keep_last": 2,
    "sample.preview": 10,
    "runtime.dtype": "float32",
    "runtime.threads": 1,
    "runtime.compile": "false",
}
LONG = SMALL | {"train.steps": 60, "train.log_every": 7, "train.eval_every": 10, "train.save_every": 9}
SHORT = SMALL | {"train.steps": 12, "train.log_every": 3, "train.eval_every": 8, "train.save_every": 4}


def arguments(settings: dict[str, Any], name: str = "run") -> list[str]:
    """Return the arguments of `minigpt train` that start a run with these settings, or resume it."""
    words = (word for key, value in settings.items() for word in ("-s", f"{key}={value}"))
    return ["text.txt", "-c", "tiny", *words, "--name", name, "--resume", "auto"]


def newest_step(run: Path) -> int:
    """Return the step of the newest visible checkpoint, or -1."""
    from minigpt.storage.runs import checkpoint_steps

    return max(checkpoint_steps(run), default=-1)


def lost_steps(result: Result, run: Path) -> int | None:
    """Return how many steps of the process a resumed run repeats; None if the process made none."""
    return max(0, result.progress.step - newest_step(run)) if result.progress.step else None


def find_damage(run: Path, saved: int = -1) -> str | None:
    """Return what is wrong with the visible checkpoints. There must be one of step `saved` or later."""
    from minigpt.errors import UserError
    from minigpt.storage.metadata import verify
    from minigpt.storage.runs import checkpoint_steps, step_folder

    if newest_step(run) < saved:
        return f"the checkpoint of step {saved} is lost; there are {checkpoint_steps(run) or 'none'}"
    try:
        for step in checkpoint_steps(run):
            verify(step_folder(run, step))
    except UserError as error:
        return str(error)
    return None


# --- the same final state ----------------------------------------------------------------------------


def final_state(run: Path) -> dict[str, Any]:
    """Return what faults must not change, such as the newest checkpoint and the metrics."""
    from minigpt.storage.runs import best_step

    folder = run / f"checkpoints/step-{newest_step(run):08d}"
    state = json.loads((folder / "metadata.json").read_bytes())["state"]
    metrics: list[dict[str, Any]] = []
    broken: list[str] = []
    for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines(keepends=True):
        try:
            metrics.append(json.loads(line if line.endswith("\n") else ""))
        except ValueError:
            broken.append(line)
    return {
        "weights": (folder / "model.safetensors").read_bytes(),
        "optimizer": (folder / "optimizer.safetensors").read_bytes(),
        "state": {key: value for key, value in state.items() if key != "seconds"},
        "best": best_step(run),
        "metrics": [{k: v for k, v in line.items() if not k.startswith(UNREPEATABLE)} for line in metrics],
        "broken lines": broken,
        "hidden files": sorted(path.name for path in (run / "checkpoints").glob(".*")),
    }


def compare(expected: dict[str, Any], run: Path, ignore: Sequence[str] = ()) -> str | None:
    """Return which parts of the final state of a run differ from `expected`."""
    try:
        found = final_state(run)
    except (OSError, ValueError, KeyError) as error:
        return f"cannot read the run: {error}"
    different = [part for part in found if part not in ignore and found[part] != expected[part]]
    return f"different {', '.join(different)}" if different else None


def train_reference(launcher: Launcher, folder: Path, settings: dict[str, Any]) -> tuple[dict[str, Any], Result]:
    """Train without faults, and return the final state and the result."""
    result = launcher.run(folder, arguments(settings, "reference"))
    if result.code:
        raise RuntimeError(f"the reference run failed:\n{result.output}")
    return final_state(folder / "runs/reference"), result


def resume_and_compare(
    launcher: Launcher, folder: Path, settings: dict[str, Any], expected: dict[str, Any], ignore: Sequence[str] = ()
) -> str | None:
    """Resume runs/run, or start it if it has no checkpoint. Return how it differs from the reference run."""
    result = launcher.run(folder, arguments(settings))
    problem = f"exit code {result.code}: {result.last_line}" if result.code else None
    return problem or compare(expected, folder / "runs/run", ignore)


# --- the table ---------------------------------------------------------------------------------------


@dataclass
class Row:
    """A row of the table: one kind of fault."""

    fault: str
    tried: int = 0
    survived: int = 0
    lost: int | None = None
    """The most steps that had to be repeated; None if unknown."""
    problems: list[str] = field(default_factory=list)


class Report:
    """The table of faults and how many of them the runs survived."""

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}

    def add(self, fault: str, problem: str | None, where: str, lost: int | None = None) -> None:
        """Count a fault. The run has survived it if there is no problem."""
        row = self.rows.setdefault(fault, Row(fault))
        row.tried += 1
        row.survived += problem is None
        if lost is not None:
            row.lost = max(lost, row.lost or 0)
        if problem is not None:
            row.problems.append(f"{where}: {problem}")
            print(f"{fault}: {where}: {problem}", file=sys.stderr, flush=True)

    @property
    def failed(self) -> int:
        """How many faults the runs have not survived."""
        return sum(row.tried - row.survived for row in self.rows.values())

    def __str__(self) -> str:
        head = f"{'fault':56}{'tried':>8}{'survived':>10}{'most lost steps':>17}"
        lines = (
            f"{row.fault:56}{row.tried:8,}{row.survived:10,}{'-' if row.lost is None else row.lost:>17}"
            for row in self.rows.values()
        )
        return "\n".join((head, *lines))


def spread(items: Sequence[Item], most: int | None) -> list[Item]:
    """Return at most `most` of the items, evenly spaced."""
    if most is None or len(items) <= most:
        return list(items)
    return [items[round(i * (len(items) - 1) / max(1, most - 1))] for i in range(most)]
