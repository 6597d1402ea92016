"""Import a folder of Hugging Face transformers: check every setting, read the weights, and compare the logits."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
from numpy.typing import NDArray

from minigpt.config.resolve import resolve
from minigpt.config.schema import ModelConfig
from minigpt.errors import UserError, escape, reason
from minigpt.files import read_text_within, read_within
from minigpt.interop.card import WEIGHTS
from minigpt.interop.hf import (
    ARCHITECTURES,
    GPT2,
    Architecture,
    config_json,
    is_transposed,
    rebuild,
    shapes,
    their_names,
)
from minigpt.interop.hf_tokenizer import from_tokenizers
from minigpt.interop.imported import Found, read_about
from minigpt.interop.logits import of_weights
from minigpt.storage.checkpoint import Arrays
from minigpt.storage.metadata import LIMITS

UNUSED = {
    "_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version",  # records
    "attention_dropout", "attn_pdrop", "embd_pdrop", "resid_pdrop", "initializer_range",  # training
    "use_cache", "task_specific_params",  # generation
    "max_window_layers",  # of windows that `use_sliding_window` turns off
    "summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj",
}  # fmt: skip
"""Keys of config.json that never change the logits. The last ones belong to a classifier."""
OFF: Mapping[str, Any] = {"add_cross_attention": False, "reorder_and_upcast_attn": False, "sliding_window": None}
"""Keys of config.json that transformers may add, with the only value that does not change the logits."""
TOKENIZER_UNUSED = {
    "backend", "is_local", "local_files_only", "model_input_names", "model_max_length", "name_or_path",
    "tokenizer_class",  # which is checked
}  # fmt: skip
"""Keys of tokenizer_config.json that never change the tokens of a text within the context."""
TOKENIZER_CLASSES = ("PreTrainedTokenizerFast", "TokenizersBackend")
"""The classes that take a tokenizer from tokenizer.json as it is. Others, and the default, build their own."""
TOKENIZER_LIMIT = 64 << 20
"""The maximum size of tokenizer.json in bytes. All of Unicode takes 25 MB."""
COMPARED_TOKENS = 256
"""The maximum length of the text that is compared."""
TOLERANCE = 1e-3
"""The largest difference from the logits of transformers, as a fraction of the largest logit. Rounding causes 1e-5."""
FLOATS = ("F32", "F16", "BF16")
"""The types of numbers that can be imported, as safetensors names them."""


def read(folder: Path) -> Found:
    """Read a folder in one of the architectures, with a tokenizer of characters or bytes.

    If transformers is installed, compare its logits with minigpt's logits.

    Raises:
        UserError: A setting or tensor is unknown, a file is damaged, or the logits differ.
    """
    config = _read_json(folder, "config.json", LIMITS["config.yaml"])
    kind = ARCHITECTURES.get(str(config.get("model_type")))
    if kind is None:
        known = ", ".join(ARCHITECTURES)
        problem = f"model_type is {escape(config.get('model_type'))[:40]}, and minigpt can import {known}"
        raise UserError(f"{escape(folder / 'config.json')}: {problem}")
    tokenizer = from_tokenizers(_read_json(folder, "tokenizer.json", TOKENIZER_LIMIT), folder / "tokenizer.json")
    _check_tokenizer_settings(folder)
    about = read_about(folder)
    model = about.config.model if about else _model(kind, config)
    used = _check_config(config, model, tokenizer.vocab_size, folder / "config.json")
    needed = sum(math.prod(shape) for shape in shapes(kind, model, tokenizer.vocab_size).values())
    limit = 4 * (needed + tokenizer.vocab_size * model.n_embd) + (2 << 20)  # with a copy of the output matrix
    arrays = _read_arrays(folder / WEIGHTS, limit)
    weights = from_theirs(kind, model, tokenizer.vocab_size, arrays, folder / WEIGHTS)
    biases = [name for name in weights if name.endswith(".bias")]
    if kind.has_bias and not (about and model.bias) and not any(weights[name].any() for name in biases):
        for name in biases:
            del weights[name]
    model = model.model_copy(update={"bias": any(name.endswith(".bias") for name in weights)})
    compared = _compare(used, arrays, model, weights)
    if compared and not compared[0] <= TOLERANCE * compared[1]:
        problem = f"the logits of transformers differ from minigpt's by {compared[0]:.2g}, and reach {compared[1]:.2g}"
        raise UserError(f"cannot import {escape(folder)}: {problem}")
    return Found(model, tokenizer, weights, "Hugging Face", about, compared=compared)


def from_theirs(
    kind: Architecture, model: ModelConfig, vocab_size: int, arrays: Arrays, origin: Path
) -> dict[str, NDArray[np.float32]]:
    """Return the weights under our names. Raise UserError if the tensors are not exactly the tensors of the model."""

    def refuse(problem: str) -> UserError:
        return UserError(f"{escape(origin)}: {escape(problem)[:200]}")

    left, weights = dict(arrays), dict[str, NDArray[np.float32]]()
    for ours, shape in shapes(kind, model, vocab_size).items():
        names = their_names(kind, ours)
        if missing := [name for name in names if name not in left]:
            raise refuse(f"the tensor {missing[0]} is missing")
        flips = is_transposed(kind, ours)
        pieces = [left.pop(name).T if flips else left.pop(name) for name in names]
        if "qk_norm" in ours:
            if not np.array_equal(pieces[0], pieces[1]):
                raise refuse(f"{names[0]} and {names[1]} differ, and minigpt has one norm for both")
            del pieces[1]
        part = (shape[0] // len(pieces), *shape[1:])
        for name, piece in zip(names, pieces, strict=False):
            if piece.shape != part:
                raise refuse(f"the tensor {name} has shape {piece.shape[::-1] if flips else piece.shape}")
            if not np.isfinite(piece).all():
                raise refuse(f"the tensor {name} has values that are not finite")
        weights[ours] = np.concatenate(pieces)
    output = left.pop("lm_head.weight", None)
    if output is not None and not np.array_equal(output, weights["token_embedding.weight"]):
        raise refuse("the output matrix is not the token embedding, and in minigpt they are the same")
    if left:
        raise refuse(f"the tensor {min(left)} has no counterpart in minigpt")
    return weights


def _check_config(config: Mapping[str, Any], model: ModelConfig, vocab_size: int, origin: Path) -> dict[str, Any]:
    """Return the settings outside `UNUSED`. Raise UserError unless each setting has the value that the model needs."""
    needed = config_json(model, vocab_size)
    known = {**OFF, "layer_types": ["full_attention"] * model.n_layer, **needed}
    for key in dict.fromkeys((*needed, *config)):
        if key in UNUSED or (key in config and key in known and config[key] == known[key]):
            continue
        if key not in known:
            raise _unknown_setting(origin, key, config[key])
        found = escape(json.dumps(config[key]))[:80] if key in config else "missing"
        raise UserError(f"{escape(origin)}: {key} is {found}, and minigpt needs {json.dumps(known[key])}")
    return {key: known[key] for key in config if key not in UNUSED}  # 0 equals False, but transformers refuses it


def _check_tokenizer_settings(folder: Path) -> None:
    """Raise UserError if a file beside tokenizer.json may change the tokens of a text."""
    path = folder / "tokenizer_config.json"
    settings = _read_json(folder, path.name, LIMITS["config.yaml"])
    if (kind := settings.get("tokenizer_class")) not in TOKENIZER_CLASSES:
        problem = f"tokenizer_class is {escape(json.dumps(kind))[:80]}, and minigpt needs {TOKENIZER_CLASSES[0]}"
        raise UserError(f"{escape(path)}: {problem}")
    for key, value in settings.items():
        if key not in TOKENIZER_UNUSED and value not in (None, False, {}, []):
            raise _unknown_setting(path, key, value)
    for name in ("special_tokens_map.json", "added_tokens.json"):
        if (folder / name).exists() and _read_json(folder, name, LIMITS["config.yaml"]):
            raise UserError(f"{escape(folder / name)} adds tokens, and minigpt has only characters and bytes")


def _unknown_setting(path: Path, key: str, value: Any) -> UserError:
    problem = f"minigpt does not know the setting {escape(key)[:80]} ({escape(json.dumps(value))[:80]})"
    return UserError(f"{escape(path)}: {problem}; remove it if the model does not need it")


def _read_arrays(path: Path, limit: int) -> Arrays:
    """Return the tensors of a safetensors file in float32."""
    content, arrays = read_within(path, path.parent, limit), {}
    try:
        for name, tensor in safetensors.deserialize(content):  # type: ignore[no-untyped-call]
            if (dtype := tensor["dtype"]) not in FLOATS:
                problem = f"the tensor {escape(name)[:80]} has numbers of type {escape(dtype)}"
                raise UserError(f"{escape(path)}: {problem}, and minigpt reads {', '.join(FLOATS)}")
            arrays[name] = _as_float32(dtype, tensor["data"]).reshape(tensor["shape"])
    except (safetensors.SafetensorError, ValueError) as error:
        raise UserError(f"{escape(path)} is not a valid safetensors file: {reason(error)}") from error
    return arrays


def _as_float32(dtype: str, content: bytearray) -> NDArray[np.float32]:
    """Return the numbers (N,) that `content` holds in one of `FLOATS`."""
    if dtype == "BF16":  # the upper half of a float32
        return (np.frombuffer(content, "<u2").astype("<u4") << 16).view("<f4")
    return np.frombuffer(content, {"F32": "<f4", "F16": "<f2"}[dtype]).astype(np.float32, copy=False)


def _read_json(folder: Path, name: str, limit: int) -> dict[str, Any]:
    text = read_text_within(folder / name, folder, limit)
    try:
        document = json.loads(text, object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{escape(folder / name)} is not valid JSON: {reason(error)}") from error
    if not isinstance(document, dict):
        raise UserError(f"{escape(folder / name)} is not a JSON object")
    return document


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) < len(pairs):  # programs differ in which one they take
        raise ValueError("a key appears twice")
    return document


def _model(kind: Architecture, config: Mapping[str, Any]) -> ModelConfig:
    """Return the settings of a model that another program saved."""
    shape = ("n_layer", "n_head", "n_embd", "n_positions", "activation_function")
    if kind is not GPT2:
        shape = (
            "num_hidden_layers", "num_attention_heads", "hidden_size", "max_position_embeddings", "hidden_act",
        )  # fmt: skip
    if missing := [key for key in shape if key not in config]:
        raise UserError(f"config.json lacks {', '.join(missing)}")
    layers, heads, width, context, activation = (config[key] for key in shape)
    ours = [name for name, theirs in kind.activations.items() if theirs == activation]
    if not ours:
        raise UserError(f"config.json: minigpt has no counterpart of the activation {escape(activation)[:40]}")
    values = {"n_layer": layers, "n_head": heads, "n_embd": width, "context": context, "activation": ours[0]}
    family = {"model.family": "classic" if kind is GPT2 else "modern"}
    return resolve(("config.json", family | {f"model.{key}": value for key, value in values.items()})).config.model


def _compare(
    config: Mapping[str, Any], arrays: Arrays, model: ModelConfig, weights: Arrays
) -> tuple[float, float] | None:
    """Return the largest difference of a logit between transformers and minigpt, and the largest logit.

    Return None if transformers is missing or too old.
    """
    try:
        theirs = rebuild(config, arrays)
    except ImportError:
        return None
    vocab_size = len(weights["token_embedding.weight"])
    ids = np.random.default_rng(0).integers(vocab_size, size=min(model.context, COMPARED_TOKENS)).tolist()
    logits = of_weights(model, weights)(ids)  # (T, V)
    return float(np.abs(theirs(ids) - logits).max()), float(np.abs(logits).max())
