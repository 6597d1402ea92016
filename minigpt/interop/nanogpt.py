"""Read a checkpoint of nanoGPT's character-level recipe: https://github.com/karpathy/nanoGPT.

nanoGPT keeps the vocabulary in a pickle, which minigpt never opens. The text has the same vocabulary: its characters,
sorted.
"""

import pickletools
import re
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from minigpt.config.resolve import resolve
from minigpt.errors import UserError, escape
from minigpt.files import open_within
from minigpt.interop.hf import GPT2
from minigpt.interop.hf_import import from_theirs
from minigpt.interop.imported import Found
from minigpt.text.corpus import Scan
from minigpt.text.tokenizer import CharTokenizer

GLOBALS = {
    "collections OrderedDict",
    "torch BFloat16Storage",
    "torch FloatStorage",
    "torch HalfStorage",
    "torch._utils _rebuild_tensor_v2",
}
"""The names that the file may contain. torch allows more, and some of those can take any amount of memory or time."""
PICKLE_LIMIT = 4 << 20
"""The maximum size of the part that is not tensors, in bytes. A model of GPT-2's size needs a tenth of it."""
COMPILED = "_orig_mod."
"""The prefix that torch.compile gives to the names of tensors."""
ARGUMENTS = {"n_layer": "n_layer", "n_head": "n_head", "n_embd": "n_embd", "block_size": "context", "bias": "bias"}
"""Our setting for each of nanoGPT's."""


def read(path: Path, text: Scan) -> Found:
    """Read ckpt.pt. nanoGPT is `classic` with the exact GELU.

    Args:
        text: The text that the model was trained on.

    Raises:
        UserError: The file is not a checkpoint of nanoGPT, its vocabulary is not that of the text, or it is damaged.
    """
    stored, damaged = _load(path), f"{escape(path)} is not a checkpoint of nanoGPT:"
    match stored:
        case {"model": dict(tensors), "model_args": dict(arguments)} if all(map(_is_tensor, tensors.items())):
            pass
        case _:
            raise UserError(f"{damaged} its 'model' has no tensors, or its 'model_args' no values")
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
        re.sub(f"^{re.escape(COMPILED)}", "", name): tensor.float().numpy()
        for name, tensor in tensors.items()
        if not (name.endswith(".attn.bias") and tensor.ndim == 4)  # the causal mask
    }
    kind = replace(GPT2, has_bias=model.bias, is_transposed=False)
    weights = from_theirs(kind, model, tokenizer.vocab_size, arrays, path)
    return Found(model, tokenizer, weights, "nanoGPT", step=_step(stored), batch_size=_batch_size(stored))


def _is_tensor(item: tuple[Any, Any]) -> bool:
    """Return whether an item is a named floating-point tensor that fits into its storage."""
    name, tensor = item
    return (
        isinstance(name, str)
        and isinstance(tensor, torch.Tensor)
        and tensor.is_floating_point()
        and tensor.numel() * tensor.element_size() <= tensor.untyped_storage().nbytes()
    )


def _load(path: Path) -> Any:
    """Return the content of a file of torch.save: tensors and plain values. Nothing else can be in it."""
    try:
        with open_within(path, path.parent) as file:
            with zipfile.ZipFile(file) as archive:  # older formats name sizes that are not in the file
                size = sum(entry.file_size for entry in archive.infolist())
                if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
                    raise UserError(f"{escape(path)} is compressed, which torch.save never does")
                if size > path.stat().st_size:
                    raise UserError(f"{escape(path)} is damaged: its parts are larger than the file")
                (values,) = (entry for entry in archive.infolist() if entry.filename.endswith("/data.pkl"))
                if values.file_size > PICKLE_LIMIT:
                    raise UserError(f"{escape(path)} has {values.file_size:,} bytes besides its tensors")
                for opcode, argument, _ in pickletools.genops(archive.read(values)):
                    if opcode.name == "GLOBAL" and argument not in GLOBALS:
                        raise UserError(f"{escape(path)} names {escape(argument)[:80]}, which nanoGPT does not save")
            file.seek(0)
            return torch.load(file, map_location="cpu", weights_only=True)  # noqa: TID251 - it runs no code
    except UserError:
        raise
    except Exception as error:  # torch raises many types for damaged files
        problem = "is not a file of torch.save with nothing but tensors and plain values"
        raise UserError(f"{escape(path)} {problem}; no code from it runs") from error


def _step(stored: dict[str, Any]) -> int:
    step = stored.get("iter_num")
    return step if type(step) is int and 0 < step < 10**12 else 0


def _batch_size(stored: dict[str, Any]) -> int | None:
    """Return the sequences per update that nanoGPT's settings name, or None."""
    match stored.get("config"):
        case {"batch_size": int(size), "gradient_accumulation_steps": int(times)} if 0 < size * times <= 1_000_000:
            return size * times
    return None
