"""The trained model that minigpt contains: a checkpoint with weights in float16 and no optimizer state."""

import sys
from functools import partial
from pathlib import Path

import numpy as np
import safetensors.numpy

from minigpt.paths import resource_path
from minigpt.storage.checkpoint import read_settings, save_checkpoint, write_arrays
from minigpt.storage.metadata import MODEL, read_checked, read_metadata
from minigpt.storage.runs import new_run, record_start
from minigpt.text.tokenizer import from_json

STORIES = "stories"


def create_run(name: str | None) -> Path:
    """Write a new run with the shipped model, in float32, as its only checkpoint. Return its folder.

    Args:
        name: The name of the run, or None for "stories" and a number.

    Raises:
        RunExistsError: The name is taken.
        CheckpointError: A file of the installation has changed.
    """
    shipped = resource_path("data", STORIES)
    metadata = read_metadata(shipped)
    config = read_settings(shipped, metadata)
    tokenizer = from_json(read_checked(shipped, "tokenizer.json", metadata).decode(), "tokenizer.json")
    half = safetensors.numpy.load(read_checked(shipped, MODEL, metadata))
    weights = {key: array.astype(np.float32) for key, array in half.items()}
    with new_run(name, STORIES) as run:
        save_checkpoint(run, config, tokenizer, metadata, partial(write_arrays, weights=weights, optimizer={}))
        record_start(run, metadata.step, sys.argv, metadata.runtime)
    return run
