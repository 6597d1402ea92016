"""The trained model that minigpt contains: a checkpoint with weights in float16 and no optimizer state."""

from collections.abc import Callable
from pathlib import Path

from minigpt.interop.imported import write_run
from minigpt.paths import resource_path
from minigpt.storage.checkpoint import read_checkpoint

STORIES = "stories"


def create_run(name: str | None, log: Callable[[str], None] = lambda line: None) -> Path:
    """Write a new run with the shipped model, in float32, as its only checkpoint. Return its folder.

    `log` receives a line for each failed attempt to save.

    Raises:
        RunExistsError: The name is taken.
        CheckpointError: A file of the installation has changed.
    """
    return write_run(read_checkpoint(resource_path("data", STORIES)), name, STORIES, log)
