"""Turn a model from another program into a run with one checkpoint, which has no optimizer state."""

import math
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from minigpt.config.resolve import resolve
from minigpt.config.schema import ModelConfig, RuntimeConfig
from minigpt.errors import escape
from minigpt.model.device import choose_runtime
from minigpt.storage.checkpoint import Arrays, save_checkpoint, write_arrays
from minigpt.storage.metadata import Metadata, TrainState
from minigpt.storage.runs import new_run, record_start
from minigpt.text.corpus import Scan, scan
from minigpt.text.dataset import encode_cached
from minigpt.text.sources import VOLATILE, open_corpus
from minigpt.text.tokenizer import Tokenizer
from minigpt.training.setup import name_stem


@dataclass(frozen=True)
class ImportedModel:
    """A model that another program saved."""

    model: ModelConfig
    tokenizer: Tokenizer
    weights: Arrays
    origin: str
    """The program, as the metadata of the run names it."""
    step: int = 0
    batch_size: int | None = None


def read_text(source: str, encoding: str) -> Scan:
    """Read the text that a model was trained on. Raises TextError."""
    return scan(open_corpus([source], encoding))


def create_run(imported: ImportedModel, text: Scan, source: str, encoding: str, name: str | None, stem: str) -> Path:
    """Write a new run with the model as its only checkpoint. Return its folder.

    Args:
        imported: The model.
        text: The training text, read from `source`. Its last tenth is the validation split.
        source: The name of the text.
        encoding: The encoding of the text.
        name: The name of the run, or None for `stem` and a number.
        stem: The start of the name.

    Raises:
        UnknownCharacterError: The text has characters outside the vocabulary.
        RunExistsError: The name is taken.
    """
    tokenizer = imported.tokenizer
    tokenizer.encode("".join(text.counts), "error")  # cached tokens may be those of a run that skips characters
    if source in VOLATILE:
        encode_cached(text, tokenizer, "error")  # it cannot be read again
    values: dict[str, Any] = {
        "data.tokenizer": tokenizer.kind,
        "data.source": [source],
        "data.encoding": encoding,
        **{f"model.{key}": value for key, value in imported.model},
    }
    if imported.batch_size:
        values["train.batch_size"] = imported.batch_size
    if imported.step:
        values["train.steps"] = imported.step
    config = resolve(("import", values)).config
    metadata = Metadata(
        corpus=escape(source),
        fingerprint=text.fingerprint,
        characters=text.characters,
        imported=imported.origin,
        vocab_size=tokenizer.vocab_size,
        parameters=sum(math.prod(array.shape) for array in imported.weights.values()),
        runtime=choose_runtime(RuntimeConfig(dtype="float32", compile=False)).environment(),
        state=TrainState(step=imported.step),
    )
    with new_run(name, name_stem(stem)) as run:
        write = partial(write_arrays, weights=imported.weights, optimizer={})
        save_checkpoint(run, config, tokenizer, metadata, write)
        record_start(run, imported.step, sys.argv, metadata.runtime)
    return run
