"""Check that the checkpoints of runs have not changed since they were written."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from minigpt.errors import UserError, reason
from minigpt.paths import RUNS, is_run, names_in
from minigpt.storage.metadata import verify
from minigpt.storage.runs import checkpoint_steps, step_folder


@dataclass(frozen=True)
class Checked:
    """A checkpoint of a run, and its problem, if any."""

    run: str
    name: str
    problem: str | None


def verify_runs(root: Path = RUNS) -> Iterator[Checked]:
    """Check the checkpoints of every run in `root`. Raise OSError if `root` cannot be read."""
    for run in sorted(root / name for name in names_in(root)):
        try:
            if not is_run(run):
                continue
            steps = checkpoint_steps(run)
        except OSError as error:
            yield Checked(run.name, "folder", reason(error))
            continue
        if not steps:
            yield Checked(run.name, "checkpoints", "there is no checkpoint")
        for step in steps:
            folder, problem = step_folder(run, step), None
            try:
                verify(folder)
            except UserError as error:
                problem = error.problem
            if problem is None or folder.exists():  # otherwise training has pruned it
                yield Checked(run.name, folder.name, problem)
