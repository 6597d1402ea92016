"""What every export says of its model: settings, loss and text."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from minigpt.storage.checkpoint import Checkpoint

ABOUT = "minigpt.json"
"""The file in every export that describes the model, and that `minigpt import` reads."""
WEIGHTS = "model.safetensors"
CHARACTERS = {"char": "one token per character", "byte": "one token per UTF-8 byte"}


def about(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return what another minigpt needs to know of a model. The paths of the text stay private."""
    settings = checkpoint.config.model_dump(mode="json", exclude={"runtime"})
    for private in ("source", "val_source"):
        del settings["data"][private]
    return {
        "corpus": public_name(checkpoint),
        "fingerprint": checkpoint.metadata.fingerprint,
        "step": checkpoint.metadata.step,
        "validation_loss": checkpoint.metadata.state.validation_loss,
        "settings": settings,
    }


def public_name(checkpoint: Checkpoint) -> str:
    """Return the names of the training texts, without their folders."""
    return " + ".join(re.split(r"[/\\\\]", name)[-1] for name in checkpoint.metadata.corpus.split(" + "))


def facts(checkpoint: Checkpoint) -> str:
    """Return a Markdown table of the model's data, loss and settings."""
    config, loss = checkpoint.config, checkpoint.metadata.state.validation_loss
    model, tokens = config.model, checkpoint.tokenizer.vocab_size
    shape = f"{model.n_layer} layers, {model.n_embd} wide"
    rows = {
        "text": public_name(checkpoint),
        "steps": f"{checkpoint.metadata.step:,} steps of {config.train.batch_size} sequences",
        "validation loss": "unknown" if loss is None else f"{loss:.4f} nats per token",
        "parameters": f"{sum(array.size for array in checkpoint.weights.values()):,}",
        "network": shape if model.is_recurrent else f"{shape}, {model.n_head} heads",
        "context": f"{model.context} tokens",
        "vocabulary": f"{tokens} tokens, {CHARACTERS[config.data.tokenizer]}",
        **{key: str(getattr(model, key)) for key in _PARTS[model.is_recurrent]},
    }
    lines = [f"| {name} | {value.replace('|', chr(92) + '|')} |" for name, value in rows.items()]
    return "\n".join(["| | |", "|---|---|", *lines])


_PARTS = {False: ("family", "position", "norm", "activation", "qk_norm", "bias"), True: ("family", "bias")}
"""The settings in the table, by `is_recurrent`."""


def save_arrays(arrays: Mapping[str, NDArray[np.float32]], path: Path, metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file. `save_file` would create one that only its owner can read."""
    path.write_bytes(safetensors.numpy.save({name: np.ascontiguousarray(a) for name, a in arrays.items()}, metadata))
