"""The trained model that minigpt contains: a checkpoint with weights in float16 and no optimizer state."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import safetensors.numpy

from minigpt.interop.imported import write_run
from minigpt.paths import resource_path
from minigpt.storage.checkpoint import read_without_weights
from minigpt.storage.metadata import MODEL, read_checked

STORIES = "stories"


def create_run(name: str | None, log: Callable[[str], None] = lambda line: None) -> Path:
    """Write a new run with the shipped model, in float32, as its only checkpoint. Return its folder.

    `log` receives a line for each failed attempt to save.

    Raises:
        RunExistsError: The name is taken.
        CheckpointError: A file of the installation has changed.
    """
    shipped = read_without_weights(resource_path("data", STORIES))
    half = safetensors.numpy.load(read_checked(shipped.path, MODEL, shipped.metadata))
    weights = {key: array.astype(np.float32) for key, array in half.items()}
    return write_run(replace(shipped, weights=weights), name, STORIES, log)
