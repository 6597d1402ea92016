"""Write a model from elsewhere as a run with one checkpoint, which has no optimizer state."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from minigpt.storage.checkpoint import Checkpoint, Snapshot, save_checkpoint, save_frame
from minigpt.storage.records import record_start
from minigpt.storage.runs import new_run


def write_run(
    model: Checkpoint, name: str | None, stem: str, log: Callable[[str], None], earlier: Sequence[Checkpoint] = ()
) -> Path:
    """Write a new run with the model as its only checkpoint. Return its folder. Raises RunExistsError.

    Without a name, the run is called `stem` and a number. `log` receives a line for each failed save. The run gets a
    frame for each `earlier` moment of its training.
    """
    with new_run(name, stem) as run:
        for moment in earlier:
            save_frame(run, moment.config, moment.tokenizer, moment.metadata, Snapshot(moment.weights, {}), log)
        save_checkpoint(run, model.config, model.tokenizer, model.metadata, Snapshot(model.weights, {}), log)
        record_start(run, model.metadata.step, model.metadata.runtime, {"command": sys.argv})
    return run
