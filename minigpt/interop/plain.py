"""Weights, settings and vocabulary as plain files, for programs of your own. Every model fits."""

import re
from pathlib import Path

import safetensors.numpy

from minigpt.config.resolve import from_yaml, to_yaml
from minigpt.config.shapes import parameter_shapes
from minigpt.interop.card import WEIGHTS, facts, public_name, save_arrays
from minigpt.interop.logits import Logits, of_weights
from minigpt.storage.checkpoint import Checkpoint

PACKAGE = ""
PROGRAM = "minigpt, from these files"

MEANINGS = {
    r"token_embedding\.weight": "the vector of each token, and the output matrix",
    r"position_embedding\.weight": "the vector of each position",
    r".*\.norm1\.weight": "gains of the norm before attention",
    r".*\.norm1\.bias": "biases of that norm",
    r".*\.norm2\.weight": "gains of the norm before the MLP",
    r".*\.norm2\.bias": "biases of that norm",
    r"norm\.weight": "gains of the last norm",
    r"norm\.bias": "biases of the last norm",
    r".*qk_norm\.weight": "gains of the norm of each head's queries and keys",
    r".*qkv\.weight": "projections to queries, keys and values, in this order",
    r".*qkv\.bias": "biases of queries, keys and values",
    r".*proj\.weight": "output projection of attention",
    r".*proj\.bias": "its biases",
    r".*gate\.weight": "gate of the MLP",
    r".*gate\.bias": "its biases",
    r".*up\.weight": "first matrix of the MLP",
    r".*up\.bias": "its biases",
    r".*down\.weight": "second matrix of the MLP",
    r".*down\.bias": "its biases",
    r".*weight_ih_l0": "projection of the input to the gates, in the order of PyTorch",
    r".*weight_hh_l0": "projection of the hidden state to the gates",
    r".*bias_ih_l0": "biases of the first",
    r".*bias_hh_l0": "biases of the second",
}
"""What each tensor is, by a pattern of its name."""


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
    return of_weights(config, safetensors.numpy.load_file(folder / WEIGHTS))


def usage(folder: Path) -> str:
    """Return the lines to paste that use the files."""
    return f"from safetensors.numpy import load_file\nweights = load_file({str(folder / WEIGHTS)!r})"


def _readme(checkpoint: Checkpoint) -> str:
    config = checkpoint.config.model
    shapes = parameter_shapes(config, checkpoint.tokenizer.vocab_size)
    rows = [f"| `{name}` | {_product(shape)} | {_meaning(name)} |" for name, shape in shapes.items()]
    ids = {
        "char": "Token i is the character `chars[i]` in `tokenizer.json`.",
        "byte": "Token i is the UTF-8 byte with the value i.",
    }.get(checkpoint.tokenizer.kind, "`tokenizer.json` defines the tokens.")
    engine, network = "minigpt/sampling/engine.py", "minigpt/model/gpt.py"
    if config.is_recurrent:
        engine, network = "minigpt/sampling/recurrent.py", "minigpt/model/recurrent.py"
    tensors = "\n".join(["| tensor | shape | meaning |", "|---|---|---|", *rows])
    return f"""# A model trained with minigpt

{facts(checkpoint)}

| file | content |
|---|---|
| `model.safetensors` | the weights, in float32 |
| `config.yaml` | all settings |
| `tokenizer.json` | the vocabulary |
| `minigpt.json` | the text, the loss and the hashes of these files |

{ids}

## Tensors

A matrix of shape (out, in) multiplies a vector of size in: `matrix @ vector`.

{tensors}

## Compute with them

`{engine}` of minigpt computes the logits from these names, with NumPy alone. `{network}` does it
with PyTorch.
"""


def _product(shape: tuple[int, ...]) -> str:
    return " × ".join(map(str, shape))


def _meaning(name: str) -> str:
    return next(meaning for pattern, meaning in MEANINGS.items() if re.fullmatch(pattern, name))
