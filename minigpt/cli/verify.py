"""Check that no checkpoint has changed since it was written, and that each belongs to the run of its folder."""

from collections.abc import Collection, Iterator
from pathlib import Path

from minigpt.errors import UserError, reason
from minigpt.paths import FRAMES, RUNS, is_run, names_in
from minigpt.storage.checkpoint import check_same_run, read_intact
from minigpt.storage.runs import checkpoint_steps, step_folder


def verify_runs(runs: Collection[Path] = ()) -> Iterator[dict[str, str | None]]:
    """Check the checkpoints and frames of runs, by default of all in runs/. Yield `run`, `name` and `problem` of each.

    The problem of an intact checkpoint is None. Raises OSError if runs/ cannot be read.
    """
    for run in runs or sorted(RUNS / name for name in names_in(RUNS)):
        try:
            if not is_run(run):
                continue
            frames = [step_folder(run, step, FRAMES) for step in checkpoint_steps(run, FRAMES)]
            checkpoints = [step_folder(run, step) for step in checkpoint_steps(run)]
        except OSError as error:
            yield {"run": run.name, "name": "folder", "problem": reason(error)}
            continue
        if not checkpoints:
            yield {"run": run.name, "name": "checkpoints", "problem": "there is no checkpoint"}
        checked, newest = list[dict[str, str | None]](), None
        for folder in reversed(frames + checkpoints):
            problem = None
            try:
                found = read_intact(folder)
                newest = newest or found
                check_same_run(found, newest)
            except UserError as error:
                problem = error.problem
            if problem is None or folder.exists():  # otherwise training has pruned it
                name = f"frames/{folder.name}" if folder in frames else folder.name
                checked.append({"run": run.name, "name": name, "problem": problem})
        yield from reversed(checked)
