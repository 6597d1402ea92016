"""Weights, settings and vocabulary as plain files, for programs of your own. Every model fits this format."""

from pathlib import Path

import safetensors.numpy
import torch

from minigpt.config.resolve import from_yaml, to_yaml
from minigpt.config.shapes import parameter_shapes
from minigpt.interop.card import WEIGHTS, facts, public_name, save_arrays
from minigpt.interop.logits import Logits, of_torch
from minigpt.model.load import build_model
from minigpt.storage.checkpoint import Checkpoint

PACKAGE = ""
PROGRAM = "minigpt, from these files"


def write(checkpoint: Checkpoint, folder: Path) -> None:
    """Write model.safetensors, config.yaml, tokenizer.json and a README.md that documents them."""
    data = checkpoint.config.data.model_copy(update={"source": (public_name(checkpoint),), "val_source": ()})
    public = checkpoint.config.model_copy(update={"data": data})  # the paths of the text stay private
    save_arrays(checkpoint.weights, folder / WEIGHTS)
    (folder / "config.yaml").write_text(to_yaml(public), encoding="utf-8", newline="\n")
    (folder / "tokenizer.json").write_text(checkpoint.tokenizer.to_json(), encoding="utf-8")
    (folder / "README.md").write_text(_readme(checkpoint), encoding="utf-8", newline="\n")


def load(folder: Path) -> Logits:
    """Build the model from the files. Return a function from ids (T,) to logits (T, V)."""
    config = from_yaml((folder / "config.yaml").read_text(encoding="utf-8"), "config.yaml").model
    weights = safetensors.numpy.load_file(folder / WEIGHTS)
    model = build_model(config, len(weights["token_embedding.weight"])).eval()
    model.load_state_dict({name: torch.tensor(array) for name, array in weights.items()})
    return of_torch(model)


def usage(folder: Path, prompt: str) -> str:
    """Return lines of Python that use the files."""
    return f"from safetensors.numpy import load_file\nweights = load_file({str(folder / WEIGHTS)!r})"


def _readme(checkpoint: Checkpoint) -> str:
    config = checkpoint.config.model
    shapes = parameter_shapes(config, checkpoint.tokenizer.vocab_size)
    rows = [f"| `{name}` | {' × '.join(map(str, shape))} |" for name, shape in shapes.items()]
    ids = {
        "char": "Token i is the character `chars[i]` in `tokenizer.json`.",
        "byte": "Token i is the UTF-8 byte with the value i.",
    }.get(checkpoint.tokenizer.kind, "`tokenizer.json` defines the tokens.")
    engine = "recurrent" if config.is_recurrent else "engine"
    tensors = "\n".join(["| tensor | shape |", "|---|---|", *rows])
    return f"""# A model trained with minigpt

{facts(checkpoint)}

| file | content |
|---|---|
| `model.safetensors` | the weights, in float32 |
| `config.yaml` | all settings |
| `tokenizer.json` | the vocabulary |
| `minigpt.json` | the name of the text, the loss and the settings |

{ids}

## Tensors

A matrix of shape (out, in) multiplies a vector of size in: `matrix @ vector`. The token embedding is
also the output matrix. `qkv` gives queries, keys and values, in this order. The weight of a norm is
its gains. The matrices of a recurrent network have the names and the order of PyTorch.

{tensors}

## Compute with them

`minigpt/sampling/{engine}.py` computes the logits from these names, with NumPy alone.
"""
