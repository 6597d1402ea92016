"""Export a checkpoint to the format of another program, and compare that program's results with minigpt's."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from minigpt.config.schema import SampleConfig
from minigpt.errors import NoCounterpartError, UserError, escape, reason
from minigpt.files import publish
from minigpt.interop import gguf, hf, onnx, plain
from minigpt.interop.card import ABOUT, TOKENS, about
from minigpt.interop.logits import Logits, of_torch
from minigpt.model.load import load_model
from minigpt.paths import containing_run
from minigpt.sampling.generate import generate_ids
from minigpt.sampling.load import load_engine
from minigpt.storage.checkpoint import Checkpoint
from minigpt.storage.metadata import METADATA

CHECKED_TOKENS = 256
"""The maximum length of the texts that `check` compares, in tokens."""


class Format(Protocol):
    """A module that writes and checks one format."""

    PACKAGE: str
    """What pip installs to get the other program, such as "transformers", or ""."""
    PROGRAM: str
    """The other program, as messages name it."""

    def write(self, checkpoint: Checkpoint, folder: Path) -> None:
        """Write the files of the format into an empty folder. May raise NoCounterpartError, UserError or OSError."""

    def load(self, folder: Path) -> Logits:
        """Open the files in the other program. Raises ImportError if the program is missing or too old."""

    def usage(self, folder: Path, prompt: str) -> str:
        """Return lines of Python that use the files, and continue `prompt` if the program reads a text."""


FORMATS: dict[str, Format] = {"gguf": gguf, "hf": hf, "onnx": onnx, "safetensors": plain}


@dataclass(frozen=True)
class Agreement:
    """How another program's results differ from the results of minigpt's own model, in float32 on the CPU."""

    difference: float
    """The largest difference of a logit in the compared texts."""
    largest: float
    """The largest absolute logit."""
    same_text: bool
    """Whether the greedy texts are equal, within the context."""
    tokens: int
    """The length of the greedy text in tokens, with its prompt."""


def export(checkpoint: Checkpoint, to: str, folder: Path) -> None:
    """Write a checkpoint in the format `to` into a new folder. The folder appears complete or not at all.

    Raises:
        NoCounterpartError: The format cannot express this model.
        UserError: The folder exists or cannot be written, or writing needs a package that is not installed.
    """
    if to != "safetensors" and checkpoint.tokenizer.kind not in TOKENS:
        raise NoCounterpartError(f"{FORMATS[to].PROGRAM} has no counterpart of a {checkpoint.tokenizer.kind} tokenizer")
    folder = Path(os.path.realpath(folder))
    _check_new(folder)
    try:
        with publish(folder) as building:
            building.mkdir()
            FORMATS[to].write(checkpoint, building)
            document = json.dumps({"format": to, **about(checkpoint)}, indent=1)
            (building / ABOUT).write_text(document + "\n", encoding="utf-8", newline="\n")
            _check_new(folder)  # someone may have made it meanwhile
    except OSError as error:
        # NumPy counts the bytes that it could not write, and does not say why.
        why = reason(error) if error.errno else f"its disk may be full ({reason(error)})"
        raise UserError(f"cannot write {escape(folder)}: {why}") from error


def check(checkpoint: Checkpoint, to: str, folder: Path) -> Agreement | None:
    """Compare an exported model with minigpt's own. Return None if the other program is missing or too old.

    Compare the logits of a sampled text and of minigpt's greedy text. The greedy texts are equal if the other program
    ranks each token of minigpt's text first, given the tokens before.
    """
    try:
        other = FORMATS[to].load(folder)
    except ImportError:
        return None
    ours, config = of_torch(load_model(checkpoint)), checkpoint.config
    length = min(config.model.context, CHECKED_TOKENS)
    prompt = checkpoint.tokenizer.encode(config.sample.prompt or "\n", "replace")[: max(1, length // 4)]
    texts, difference, largest, same_text = [prompt], 0.0, 0.0, True
    engine = load_engine(checkpoint)
    for temperature in (1.0, 0.0) if length > len(prompt) else ():
        settings = SampleConfig(temperature=temperature, length=length - len(prompt))
        tokens = [ids[0] for ids, _ in generate_ids(engine, prompt, settings)]
        texts.append(np.concatenate((prompt, tokens)))
    for ids in texts:
        logits, theirs = ours(ids.tolist()), other(ids.tolist())
        difference = float(np.maximum(difference, np.abs(theirs - logits).max()))  # keeps NaN
        largest = float(np.maximum(largest, np.abs(logits).max()))
        same_text = bool((theirs.argmax(1)[len(prompt) - 1 : -1] == ids[len(prompt) :]).all())  # of the greedy text
    return Agreement(difference, largest, same_text, len(ids))


def _check_new(folder: Path) -> None:
    """Raise UserError if `folder` exists or belongs to a run."""
    if os.path.lexists(folder):
        raise UserError(f"cannot write {escape(folder)}: it exists; name a new folder")
    if run := containing_run(folder / METADATA):
        raise UserError(f"cannot write {escape(folder)}: it belongs to run {escape(run.name)}")
