"""Turn a model from another program into a run with one checkpoint, which has no optimizer state."""

import math
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from minigpt.config.resolve import flatten, resolve, saved
from minigpt.config.schema import ModelConfig, RunConfig, RuntimeConfig
from minigpt.errors import UserError, escape
from minigpt.files import read_text_within
from minigpt.interop.card import ABOUT, EXPORTED
from minigpt.model.device import choose_runtime
from minigpt.storage.checkpoint import Arrays, save_checkpoint, write_arrays
from minigpt.storage.metadata import LIMITS, METADATA, Count, Metadata, TrainState
from minigpt.storage.runs import new_run, record_start
from minigpt.text.corpus import Scan, scan
from minigpt.text.dataset import encode_cached
from minigpt.text.sources import VOLATILE, open_corpus
from minigpt.text.tokenizer import Tokenizer
from minigpt.training.setup import name_stem


class About(BaseModel):
    """The content of minigpt.json, checked field by field. Unknown fields are ignored."""

    model_config = ConfigDict(frozen=True, strict=True, allow_inf_nan=False)

    corpus: str = Field(max_length=LIMITS["config.yaml"])
    fingerprint: str = Field(max_length=1000)
    origin: str = Field("", max_length=100)
    step: Count
    validation_loss: float | None
    settings: dict[str, Any]

    @property
    def config(self) -> RunConfig:
        """All settings. The text is named as the training run named it, without its folder."""
        values = saved(self.settings, ABOUT) | {"data.source": [self.corpus or "unknown"], "data.val_source": []}
        return resolve((ABOUT, values)).config


def read_about(folder: Path) -> About | None:
    """Return the description of a model in an export, or None if another program wrote it. Raises UserError."""
    if not (folder / ABOUT).exists():
        return None
    text = read_text_within(folder / ABOUT, folder, LIMITS[METADATA])
    try:
        return About.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = "".join(f"{part}: " for part in first["loc"][:1])
        raise UserError(f"{escape(folder / ABOUT)} is not valid: {escape(field + first['msg'])}") from error


@dataclass(frozen=True)
class Found:
    """A model that another program saved."""

    model: ModelConfig
    tokenizer: Tokenizer
    weights: Arrays
    origin: str
    """The program, as the metadata of the run names it."""
    about: About | None = None
    step: int = 0
    batch_size: int | None = None
    compared: tuple[float, float] | None = None
    """The largest difference from the program's logits, and the largest logit. None if it is missing or too old."""


def read_text(source: str, encoding: str) -> Scan:
    """Read the text that a model was trained on. Raises TextError."""
    return scan(open_corpus([source], encoding))


def create_run(found: Found, text: Scan | None, source: str | None, encoding: str, name: str | None, stem: str) -> Path:
    """Write a new run with the model as its only checkpoint. Return its folder.

    Args:
        text: The training text, read from `source`. Its last tenth is the validation split, unless the model came
            with its own settings.
        name: The name of the run, or None for `stem` and a number.

    Raises:
        UnknownCharacterError: The text has characters outside the vocabulary.
        RunExistsError: The name is taken.
    """
    about, tokenizer = found.about, found.tokenizer
    values: dict[str, Any] = {"data.tokenizer": tokenizer.kind}
    values |= {f"model.{key}": value for key, value in found.model}
    if found.batch_size:
        values["train.batch_size"] = found.batch_size
    if found.step:
        values["train.steps"] = found.step
    if text is not None:
        unknown = about.config.data.unknown if about else "error"
        tokenizer.encode("".join(text.counts), unknown)  # cached tokens may be those of a run that skips characters
        if source in VOLATILE:
            encode_cached(text, tokenizer, unknown)  # it cannot be read again
        values |= {"data.source": [source], "data.val_source": [], "data.encoding": encoding}
    elif about is None:
        values["data.source"] = ["unknown"]
    exported = flatten(about.config) if about else {}
    config = resolve((ABOUT, exported), ("import", values)).config
    step, loss, origin, fingerprint = found.step, None, found.origin, ""
    if about is not None:
        step, loss, origin, fingerprint = about.step, about.validation_loss, about.origin or EXPORTED, about.fingerprint
    if text is not None and text.fingerprint != fingerprint:  # the loss was measured on another validation split
        fingerprint, loss = text.fingerprint, None
    metadata = Metadata(
        corpus=escape(source or config.data.source[0]),
        fingerprint=fingerprint,
        characters=text.characters if text else 0,
        imported=origin,
        vocab_size=tokenizer.vocab_size,
        parameters=sum(math.prod(array.shape) for array in found.weights.values()),
        runtime=choose_runtime(RuntimeConfig(dtype="float32", compile=False)).environment(),
        state=TrainState(step=step, validation_loss=loss, best_loss=loss, best_step=step if loss is not None else 0),
    )
    with new_run(name, name_stem(stem)) as run:
        write = partial(write_arrays, weights=found.weights, optimizer={})
        save_checkpoint(run, config, tokenizer, metadata, write)
        record_start(run, step, sys.argv, metadata.runtime)
    return run
