"""Write a model from elsewhere as a run with one checkpoint, which has no optimizer state."""

import sys
from collections.abc import Callable
from pathlib import Path

from minigpt.storage.checkpoint import Checkpoint, Snapshot, save_checkpoint
from minigpt.storage.records import record_start
from minigpt.storage.runs import new_run


def write_run(model: Checkpoint, name: str | None, stem: str, log: Callable[[str], None]) -> Path:
    """Write a new run with the model as its only checkpoint. Return its folder. Raises RunExistsError.

    Without a name, the run is called `stem` and a number. `log` receives a line for each failed attempt.
    """
    with new_run(name, stem) as run:
        save_checkpoint(run, model.config, model.tokenizer, model.metadata, Snapshot(model.weights, {}), log)
        record_start(run, model.metadata.step, model.metadata.runtime, {"command": sys.argv})
    return run
