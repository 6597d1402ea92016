"""Check that the files of runs have not changed since they were written, and that they agree with each other."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from minigpt.errors import UserError, reason
from minigpt.files import open_within
from minigpt.paths import FRAMES, RUNS, is_run, names_in
from minigpt.storage.checkpoint import changed_settings
from minigpt.storage.metadata import Metadata, verify
from minigpt.storage.runs import best_step, checkpoint_steps, step_folder


@dataclass(frozen=True)
class Checked:
    """A file or checkpoint of a run, and its problem, if any."""

    run: str
    name: str
    problem: str | None


def verify_runs(root: Path = RUNS) -> Iterator[Checked]:
    """Check the checkpoints and frames of every run in `root`, and its other files against the newest checkpoint.

    Raises:
        OSError: `root` cannot be read.
    """
    for run in sorted(root / name for name in names_in(root)):
        newest: Metadata | None = None
        try:
            if not is_run(run):
                continue
            frames = [step_folder(run, step, FRAMES) for step in checkpoint_steps(run, FRAMES)]
            checkpoints = [step_folder(run, step) for step in checkpoint_steps(run)]
        except OSError as error:
            yield Checked(run.name, "folder", reason(error))
            continue
        for folder in frames + checkpoints:
            problem = ""
            try:
                metadata = verify(folder)
                newest = newest if folder in frames else metadata
            except UserError as error:
                problem = error.problem
            if not problem or folder.exists():  # otherwise training has pruned it
                name = f"frames/{folder.name}" if folder in frames else folder.name
                yield Checked(run.name, name, problem or None)
        for name, check in CHECKS.items():
            problem = "there is no intact checkpoint to compare it with"
            try:
                if newest is not None:
                    problem = check(run, newest)
            except (UserError, OSError) as error:
                problem = str(error)
            yield Checked(run.name, name, problem or None)


def _best(run: Path, newest: Metadata) -> str:
    best_step(run)
    return ""


def _settings(run: Path, newest: Metadata) -> str:
    return changed_settings(run, step_folder(run, newest.step))


def _metrics(run: Path, newest: Metadata) -> str:
    if newest.metrics_bytes == 0:  # a run that was just started, or trained from Python without a report
        return ""
    with open_within(run / "metrics.jsonl", run) as file:
        content = file.read(newest.metrics_bytes)
    is_same = hashlib.sha256(content).hexdigest() == newest.metrics_sha256
    return "" if is_same else f"it has changed since step {newest.step}"


CHECKS = {"best checkpoint": _best, "config.yaml": _settings, "metrics.jsonl": _metrics}
