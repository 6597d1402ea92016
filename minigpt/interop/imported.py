"""Write a model from elsewhere as a run with one checkpoint, which has no optimizer state."""

import sys
from collections.abc import Callable
from pathlib import Path

from minigpt.config.schema import RunConfig
from minigpt.storage.checkpoint import Arrays, Snapshot, save_checkpoint
from minigpt.storage.metadata import Metadata
from minigpt.storage.records import record_start
from minigpt.storage.runs import new_run
from minigpt.text.tokenizer import Tokenizer


def write_run(
    name: str | None,
    stem: str,
    config: RunConfig,
    tokenizer: Tokenizer,
    metadata: Metadata,
    weights: Arrays,
    log: Callable[[str], None] = lambda line: None,
) -> Path:
    """Write a new run with the model as its only checkpoint. Return its folder. Raises RunExistsError.

    Without a name, the run is called `stem` and a number. `log` receives a line for each failed attempt.
    """
    with new_run(name, stem) as run:
        save_checkpoint(run, config, tokenizer, metadata, Snapshot(weights, {}), log)
        record_start(run, metadata.step, metadata.runtime, {"command": sys.argv})
    return run
