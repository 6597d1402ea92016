"""Check that the files of runs have not changed since they were written."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from minigpt.config.resolve import from_yaml
from minigpt.errors import UserError, escape
from minigpt.files import open_within, read_text_within
from minigpt.paths import RUNS
from minigpt.storage.metadata import LIMITS, verify
from minigpt.storage.runs import all_runs, checkpoint_steps, step_folder

LINE_LIMIT = 1 << 20
"""The maximum line length of a JSON Lines file, in bytes."""


@dataclass(frozen=True)
class Checked:
    """A file or checkpoint of a run, and its problem, if any."""

    run: str
    name: str
    problem: str | None


def verify_runs(root: Path = RUNS) -> Iterator[Checked]:
    """Check the settings, records and checkpoints of every run in `root`."""
    for run in all_runs(root):
        checkpoints, metrics = [step_folder(run, step) for step in checkpoint_steps(run)], run / "metrics.jsonl"
        records = [metrics] if checkpoints or metrics.exists() else []
        for path in (run / "config.yaml", run / "environment.jsonl", *records, *checkpoints):
            problem = None
            try:
                _check(path, run)
            except (UserError, OSError) as error:
                problem = str(error)
            if path.exists() or path not in checkpoints:  # otherwise training has pruned it
                yield Checked(run.name, path.name, problem)


def _check(path: Path, run: Path) -> None:
    match path.suffix:
        case ".yaml":
            from_yaml(read_text_within(path, run, LIMITS[path.name]), str(path))
        case ".jsonl":
            _check_lines(path, run)
        case _:
            verify(path)


def _check_lines(path: Path, run: Path) -> None:
    """Check that each line is a JSON object with a step. A killed process may leave an incomplete last line."""
    with open_within(path, run) as file:
        for number, line in enumerate(iter(lambda: file.readline(LINE_LIMIT), b""), start=1):
            try:
                is_valid = json.loads(line)["step"] >= 0
            except (ValueError, KeyError, TypeError, RecursionError):
                is_valid = False
            if not is_valid and (line.endswith(b"\n") or len(line) == LINE_LIMIT):
                raise UserError(f"{escape(path)}: line {number} is damaged")
