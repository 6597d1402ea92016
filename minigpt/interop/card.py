"""The description of the model in every export: settings, loss and text."""

import re
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from minigpt.errors import UserError, count
from minigpt.storage.checkpoint import Checkpoint
from minigpt.text.tokenizer import Tokenizer

ABOUT = "minigpt.json"
"""The file in every export that describes the model."""
WEIGHTS = "model.safetensors"
TOKENS = {"char": "one token per character", "byte": "one token per UTF-8 byte"}  # what other programs can express


def about(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return what describes a model. The paths of the text stay private."""
    settings = checkpoint.config.model_dump(mode="json", exclude={"runtime"})
    for private in ("source", "val_source"):
        del settings["data"][private]
    return {
        "corpus": public_name(checkpoint),
        "fingerprint": checkpoint.metadata.fingerprint,
        "origin": checkpoint.metadata.imported,
        "step": checkpoint.metadata.step,
        "validation_loss": own_loss(checkpoint),
        "settings": settings,
    }


def own_loss(checkpoint: Checkpoint) -> float | None:
    """Return the validation loss of these weights. None if an earlier step had a lower loss, or the loss is unknown."""
    state = checkpoint.metadata.state
    return state.best_loss if state.best_step == state.step else None


def public_name(checkpoint: Checkpoint) -> str:
    """Return the names of the training texts, without their folders."""
    return " + ".join(re.split(r"[/\\\\]", name.rstrip("/\\"))[-1] for name in checkpoint.metadata.corpus.split(" + "))


def facts(checkpoint: Checkpoint) -> str:
    """Return a Markdown table of the model's data, loss and settings."""
    config, loss = checkpoint.config, own_loss(checkpoint)
    model, tokens, kind = config.model, checkpoint.tokenizer.vocab_size, checkpoint.tokenizer.kind
    parts = (
        ["family", "bias"] if model.is_recurrent else ["family", "position", "norm", "activation", "qk_norm", "bias"]
    )
    shape = f"{count(model.n_layer, 'layer')}, {model.n_embd} wide"
    rows = {
        "text": public_name(checkpoint),
        "steps": f"{count(checkpoint.metadata.step, 'step')} of {count(config.train.batch_size, 'sequence')}",
        "validation loss": "unknown" if loss is None else f"{loss:.4f} nats per token",
        "parameters": f"{sum(array.size for array in checkpoint.weights.values()):,}",
        "network": shape if model.is_recurrent else f"{shape}, {count(model.n_head, 'head')}",
        "context": count(model.context, "token"),
        "vocabulary": f"{count(tokens, 'token')}, {TOKENS.get(kind, f'of a {kind} tokenizer')}",
        **{key: str(getattr(model, key)) for key in parts},
    }
    if checkpoint.metadata.imported:  # the batch size is unknown
        del rows["steps"]
    lines = [f"| {name} | {value.replace('|', chr(92) + '|')} |" for name, value in rows.items()]
    return "\n".join(["| | |", "|---|---|", *lines])


def short_prompt(tokenizer: Tokenizer) -> str:
    """Return a prompt of one token: a newline, or a character that the vocabulary has."""
    return tokenizer.decode(tokenizer.encode("\n", "replace"))


def optional(name: str) -> Any:
    """Import an optional package. Raises UserError if it is not installed."""
    try:
        return import_module(name)
    except ImportError as error:
        raise UserError(f"the package {name} is not installed; to install it: pip install {name}") from error


def save_arrays(arrays: Mapping[str, NDArray[np.float32]], path: Path, metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file. `save_file` would create a file that only its owner can read."""
    path.write_bytes(safetensors.numpy.save({name: np.ascontiguousarray(a) for name, a in arrays.items()}, metadata))


def model_card(checkpoint: Checkpoint, architecture: str) -> str:
    """Return the README.md of a folder for Hugging Face."""
    unknown = (
        "The tokenizer splits a text into its UTF-8 bytes, so it reads any text."
        if checkpoint.tokenizer.kind == "byte"
        else "The tokenizer knows the characters of the training text. Any other character is an error."
    )
    context = checkpoint.config.model.context
    return f"""---
library_name: transformers
pipeline_tag: text-generation
license: unknown
tags: [minigpt]
---

# A language model trained with minigpt

A small language model. In transformers it is a `{architecture}`. It needs no remote code.

{facts(checkpoint)}

## Use

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("FOLDER")
model = AutoModelForCausalLM.from_pretrained("FOLDER")
ids = tokenizer("PROMPT", return_tensors="pt")
print(tokenizer.decode(model.generate(**ids)[0]))
```

{unknown}

## Limits

- The context is {count(context, "token")}, and `generate` stops there. Past it, results differ from minigpt's:
  minigpt drops the older half of the window and continues.
- It imitates its text, and knows nothing else. It may repeat parts of the text word for word.

## License

Not chosen yet: replace `unknown` at the top of this file. Check the licenses of all training texts.
"""
