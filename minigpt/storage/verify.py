"""Check that the files of runs have not changed since they were written."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from minigpt.config.resolve import from_yaml
from minigpt.errors import UserError, escape
from minigpt.files import open_within, read_text_within, read_within
from minigpt.paths import CHECKPOINTS, RUNS
from minigpt.storage.metadata import LIMITS, verify
from minigpt.storage.runs import ENVIRONMENT_LIMIT, POINTERS, all_runs, checkpoint_steps, pointed_step, step_folder

LINE_LIMIT = 1 << 20
"""The longest line of metrics.jsonl, in bytes."""


@dataclass(frozen=True)
class Checked:
    """A file or checkpoint of a run, and its problem, if it has one."""

    run: str
    what: str
    problem: str | None


def verify_runs(root: Path = RUNS) -> Iterator[Checked]:
    """Check the settings, metrics, checkpoints and pointers of every run in `root`."""
    for run in all_runs(root):
        steps = checkpoint_steps(run)
        parts = ["config.yaml", "environment.json"]
        parts += ["metrics.jsonl"] if steps or (run / "metrics.jsonl").exists() else []
        parts += [f"step {step}" for step in steps] + [f"pointer {name}" for name in POINTERS if steps]
        for what in parts:
            problem = None
            try:
                _check(run, what)
            except (UserError, OSError) as error:
                problem = str(error)
            is_pruned = what.startswith("step ") and int(what[5:]) not in checkpoint_steps(run)
            if not is_pruned:
                yield Checked(run.name, what, problem)


def _check(run: Path, what: str) -> None:
    path = run / what
    match what.split():
        case ["config.yaml"]:
            from_yaml(read_text_within(path, run, LIMITS[what]), str(path))
        case ["environment.json"]:
            try:
                json.loads(read_within(path, run, ENVIRONMENT_LIMIT))
            except (ValueError, RecursionError) as error:
                raise UserError(f"{escape(path)} is not valid JSON") from error
        case ["metrics.jsonl"]:
            _check_metrics(path, run)
        case ["step", step]:
            verify(step_folder(run, int(step)))
        case ["pointer", name] if pointed_step(run, name) is None:
            raise UserError(f"{escape(run / CHECKPOINTS / name)} names no checkpoint; the next save repairs it")


def _check_metrics(path: Path, run: Path) -> None:
    """Check that each line has a step, in order. A kill may leave an incomplete last line."""
    last, number = 0, 0
    with open_within(path, run) as file:
        while line := file.readline(LINE_LIMIT):
            number += 1
            if not line.endswith(b"\n") and len(line) < LINE_LIMIT:
                return
            try:
                step = json.loads(line)["step"]
                in_order = step >= last
            except (ValueError, KeyError, TypeError, RecursionError):
                in_order = False
            if not in_order:
                raise UserError(f"{escape(path)}: line {number} is damaged")
            last = step
