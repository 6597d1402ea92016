"""Check that the files of runs have not changed since they were written."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
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
        for what, check in _checks(run):
            try:
                check()
            except (UserError, OSError) as error:
                is_pruned = what.startswith("step ") and int(what[5:]) not in checkpoint_steps(run)
                if not is_pruned:
                    yield Checked(run.name, what, str(error))
            else:
                yield Checked(run.name, what, None)


def _checks(run: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    yield "config.yaml", partial(_check_config, run)
    yield "environment.json", partial(_check_environment, run)
    if checkpoint_steps(run) or (run / "metrics.jsonl").exists():
        yield "metrics.jsonl", partial(_check_metrics, run)
    for step in checkpoint_steps(run):
        yield f"step {step}", partial(verify, step_folder(run, step))
    for pointer in POINTERS if checkpoint_steps(run) else ():
        yield f"pointer {pointer}", partial(_check_pointer, run, pointer)


def _check_config(run: Path) -> None:
    from_yaml(read_text_within(run / "config.yaml", run, LIMITS["config.yaml"]), str(run / "config.yaml"))


def _check_environment(run: Path) -> None:
    try:
        json.loads(read_within(run / "environment.json", run, ENVIRONMENT_LIMIT))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{escape(run / 'environment.json')} is not valid JSON") from error


def _check_metrics(run: Path) -> None:
    """Check that each line has a step, in order. A kill may leave an incomplete last line."""
    last, number = 0, 0
    with open_within(run / "metrics.jsonl", run) as file:
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
                raise UserError(f"{escape(run / 'metrics.jsonl')}: line {number} is damaged")
            last = step


def _check_pointer(run: Path, pointer: str) -> None:
    if pointed_step(run, pointer) is None:
        raise UserError(f"{escape(run / CHECKPOINTS / pointer)} names no checkpoint; the next save repairs it")
