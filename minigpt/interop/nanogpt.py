"""Read a checkpoint of nanoGPT's character-level recipe: https://github.com/karpathy/nanoGPT.

nanoGPT keeps the vocabulary in a pickle, which minigpt never opens. The text has the same vocabulary: its characters,
sorted.
"""

import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from minigpt.config.resolve import resolve
from minigpt.config.schema import ModelConfig
from minigpt.errors import UserError, escape
from minigpt.files import open_within
from minigpt.interop.hf import GPT2, shapes, their_names
from minigpt.interop.imported import ImportedModel
from minigpt.storage.checkpoint import Arrays
from minigpt.text.corpus import Scan
from minigpt.text.tokenizer import CharTokenizer

COMPILED = "_orig_mod."
"""The prefix that torch.compile gives to the names of tensors."""
ARGUMENTS = {"n_layer": "n_layer", "n_head": "n_head", "n_embd": "n_embd", "block_size": "context", "bias": "bias"}
"""Our setting for each of nanoGPT's."""


def read(path: Path, text: Scan) -> ImportedModel:
    """Read ckpt.pt. nanoGPT is `classic` with the exact GELU.

    Args:
        text: The text that the model was trained on.

    Raises:
        UserError: The file is not a checkpoint of nanoGPT, its vocabulary is not that of the text, or it is damaged.
    """
    stored, damaged = _load(path), f"{escape(path)} is not a checkpoint of nanoGPT:"
    arguments = stored.get("model_args")
    if not isinstance(arguments, dict):
        raise UserError(f"{damaged} its 'model_args' have no values")
    if wrong := [key for key in (*ARGUMENTS, "vocab_size") if not isinstance(arguments.get(key), int)]:
        raise UserError(f"{damaged} its model_args lack {', '.join(wrong)}")
    values = {f"model.{ours}": arguments[theirs] for theirs, ours in ARGUMENTS.items()}
    classic = {"model.family": "classic", "model.activation": "gelu_exact"}
    model = resolve((path.name, {**classic, **values})).config.model
    tokenizer = CharTokenizer(text.counts)
    if arguments["vocab_size"] != tokenizer.vocab_size:
        size, name = arguments["vocab_size"], text.corpus.name
        problem = f"{escape(path)} has a vocabulary of {escape(size)}, and {name} has {tokenizer.vocab_size} characters"
        is_bpe = isinstance(size, int) and size >= 50_257
        why = "minigpt cannot import GPT-2's BPE tokens" if is_bpe else "name the text that the model was trained on"
        raise UserError(f"{problem}: {why}")
    arrays = {
        name: array
        for name, array in stored["model"].items()
        if not (name.endswith(".attn.bias") and array.ndim == 4)  # the causal mask
    }
    weights = _our_weights(model, tokenizer.vocab_size, arrays, path)
    return ImportedModel(model, tokenizer, weights, "nanoGPT", step=_step(stored), batch_size=_batch_size(stored))


def _our_weights(model: ModelConfig, vocab_size: int, arrays: Arrays, path: Path) -> Arrays:
    """Return the weights under our names. Raise UserError if the tensors are not exactly those of the model."""

    def refuse(problem: str) -> UserError:
        return UserError(f"{escape(path)}: {escape(problem)[:200]}")

    kind, rest, weights = replace(GPT2, has_bias=model.bias), dict(arrays), dict[str, NDArray[np.float32]]()
    for ours, shape in shapes(kind, model, vocab_size).items():
        (name,) = their_names(kind, ours)
        if name not in rest:
            raise refuse(f"the tensor {name} is missing")
        array = rest.pop(name)
        if array.shape != shape:
            raise refuse(f"the tensor {name} has shape {array.shape}")
        if not np.isfinite(array).all():
            raise refuse(f"the tensor {name} has values that are not finite")
        weights[ours] = np.ascontiguousarray(array)
    output = rest.pop("lm_head.weight", None)
    if output is not None and not np.array_equal(output, weights["token_embedding.weight"]):
        raise refuse("the output matrix is not the token embedding, and in minigpt they are the same")
    if rest:
        raise refuse(f"the tensor {min(rest)} has no counterpart in minigpt")
    return weights


def _load(path: Path) -> dict[str, Any]:
    """Return the content of a file of torch.save. Its dictionary "model" has arrays in float32. Raises UserError."""
    with open_within(path, path.parent) as file:
        try:
            if damaged := zipfile.ZipFile(file).testzip():  # torch does not compare the checksums
                raise ValueError(f"{damaged} is damaged")
            file.seek(0)
            # With weights_only, torch builds tensors and plain values, and runs no code from the file.
            stored: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)  # noqa: TID251
            model = {name.removeprefix(COMPILED): tensor.float().numpy() for name, tensor in stored["model"].items()}
        except MemoryError:
            raise
        except Exception as error:  # zipfile and torch raise many types for damaged files
            problem = "is damaged, or not a file of torch.save with nothing but tensors and plain values"
            raise UserError(f"{escape(path)} {problem}; no code from it runs") from error
    return {**stored, "model": model}


def _step(stored: dict[str, Any]) -> int:
    step = stored.get("iter_num")
    return step if type(step) is int and 0 < step < 10**12 else 0


def _batch_size(stored: dict[str, Any]) -> int | None:
    """Return the sequences per update that nanoGPT's settings name, or None."""
    match stored.get("config"):
        case {"batch_size": int(size), "gradient_accumulation_steps": int(times)} if 0 < size * times <= 1_000_000:
            return size * times
    return None
