"""Read a checkpoint of nanoGPT's character-level recipe: https://github.com/karpathy/nanoGPT.

nanoGPT keeps the vocabulary in a pickle, which minigpt never opens. The text has the same vocabulary: its characters,
sorted.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minigpt.config.resolve import resolve
from minigpt.config.schema import ModelConfig, RuntimeConfig
from minigpt.config.shapes import parameter_shapes
from minigpt.errors import UserError, escape
from minigpt.interop.hf import GPT2, their_names
from minigpt.interop.imported import write_run
from minigpt.interop.saved import read_saved
from minigpt.model.device import choose_runtime
from minigpt.storage.checkpoint import Arrays, Checkpoint
from minigpt.storage.metadata import Metadata, TrainState
from minigpt.text.corpus import Scan, scan
from minigpt.text.sources import open_corpus
from minigpt.text.tokenizer import CharTokenizer
from minigpt.training.setup import name_stem

COMPILED = "_orig_mod."
"""The prefix that torch.compile gives to the names of tensors."""
ARGUMENTS = {"n_layer": "n_layer", "n_head": "n_head", "n_embd": "n_embd", "block_size": "context", "bias": "bias"}
"""Our names for settings of nanoGPT."""


def create_run(
    path: Path, source: str, encoding: str, name: str | None, log: Callable[[str], None] = lambda line: None
) -> Path:
    """Write a new run with the model of ckpt.pt as its only checkpoint. Return its folder.

    `source` is the text that the model was trained on. Its last tenth becomes the validation split.
    `log` receives a line for each failed attempt to save.

    Raises:
        TextError: The text cannot be read.
        UserError: `read` raises it.
        RunExistsError: The name is taken.
    """
    text = scan(open_corpus([source], encoding))
    model, weights, step = read(path, text)
    values = {"data.source": [source], "data.encoding": encoding, **{f"model.{key}": value for key, value in model}}
    if step:
        values["train.steps"] = step
    metadata = Metadata(
        corpus=escape(source),
        fingerprint=text.fingerprint,
        characters=text.characters,
        imported="nanoGPT",
        vocab_size=len(text.counts),
        parameters=sum(array.size for array in weights.values()),
        runtime=choose_runtime(RuntimeConfig(dtype="float32", compile=False)).environment(),
        state=TrainState(step=step),
    )
    config = resolve(("import", values)).config
    return write_run(
        Checkpoint(config, CharTokenizer(text.counts), metadata, weights, path), name, name_stem(source), log
    )


def read(path: Path, text: Scan) -> tuple[ModelConfig, Arrays, int]:
    """Return the settings, weights and steps of ckpt.pt. The family is `classic`, with the exact GELU.

    Raises:
        UserError: The file is damaged or no checkpoint of nanoGPT, or its vocabulary has another size than the text's.
    """
    stored, damaged = read_saved(path, _arrays), f"{escape(path)} is not a checkpoint of nanoGPT:"
    arguments = stored.get("model_args")
    arguments = arguments if isinstance(arguments, dict) else {}
    if wrong := [key for key in (*ARGUMENTS, "vocab_size") if not isinstance(arguments.get(key), int)]:
        raise UserError(f"{damaged} its model_args lack {', '.join(wrong)}")
    values = {f"model.{ours}": arguments[theirs] for theirs, ours in ARGUMENTS.items()}
    classic = {"model.family": "classic", "model.activation": "gelu_exact"}
    model = resolve((path.name, {**classic, **values})).config.model
    size = arguments["vocab_size"]
    if size != len(text.counts):
        problem = f"{escape(path)} has a vocabulary of {size}, and {text.corpus.name} has {len(text.counts)} characters"
        raise UserError(f"{problem}: name the text that the model was trained on. minigpt has no BPE tokens")
    step = stored.get("iter_num")
    weights = _our_weights(model, size, stored["model"], path)
    return model, weights, step if type(step) is int and 0 < step < 10**12 else 0


def _our_weights(model: ModelConfig, vocab_size: int, arrays: Arrays, path: Path) -> Arrays:
    """Return the weights under our names. Raise UserError if the tensors do not fit the model or are not finite."""

    def refuse(problem: str) -> UserError:
        return UserError(f"{escape(path)}: {escape(problem)[:200]}")

    weights = dict[str, NDArray[np.float32]]()
    rest = {name: array for name, array in arrays.items() if array.ndim != 4}  # causal masks have 4
    for ours, shape in parameter_shapes(model, vocab_size).items():
        (name,) = their_names(GPT2, ours)
        array = rest.pop(name, None)
        if array is None or array.shape != shape:
            raise refuse(f"the tensor {name} {'is missing' if array is None else f'has shape {array.shape}'}")
        if not np.isfinite(array).all():
            raise refuse(f"the tensor {name} has values that are not finite")
        weights[ours] = np.ascontiguousarray(array)
    output = rest.pop("lm_head.weight", None)
    if output is not None and not np.array_equal(output, weights["token_embedding.weight"]):
        raise refuse("the output matrix is not the token embedding, and in minigpt they are the same")
    if rest:
        raise refuse(f"the tensor {min(rest)} has no counterpart in minigpt")
    return weights


def _arrays(stored: dict[str, Any]) -> dict[str, Any]:
    """Return the content of ckpt.pt, with the tensors of its dictionary "model" as arrays in float32."""
    model = {name.removeprefix(COMPILED): tensor.float().numpy() for name, tensor in stored["model"].items()}
    return {**stored, "model": model}
