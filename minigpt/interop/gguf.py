"""Export to GGUF, the file format of llama.cpp.

https://github.com/ggml-org/ggml/blob/master/docs/gguf.md specifies the format. llama.cpp computes each architecture by
code of its own. Three architectures compute the same functions as models of minigpt.
"""

import contextlib
import io
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from minigpt.config.schema import ModelConfig
from minigpt.config.shapes import NORM_EPS, POSITION_BASE, hidden_width
from minigpt.errors import NoCounterpartError
from minigpt.interop import hf
from minigpt.interop.card import ABOUT, optional
from minigpt.interop.logits import Logits
from minigpt.sampling.engine import Array
from minigpt.storage.checkpoint import Checkpoint
from minigpt.text.tokenizer import Tokenizer

PACKAGE = "llama-cpp-python"
PROGRAM = "llama.cpp"
FILE = "model.gguf"

ACTIVATIONS = {"apertus": "relu2", "qwen3": "swiglu", "gpt2": "gelu"}
"""Our name for the activation that llama.cpp computes, by the `model_type` of transformers."""
XIELU_SCALE = 64
"""The activation of apertus is xIELU (Huang and Schlag 2024, https://arxiv.org/abs/2411.13010): p x^2 + b x above 0.

llama.cpp computes p = softplus(alpha_p), which is exactly 64 for alpha_p = 64. With b = 0, dividing `up` by 8 then
gives x^2. Below 0, the factor b + softplus(alpha_n) is 0 for alpha_n = -200.
"""


def write(checkpoint: Checkpoint, folder: Path) -> None:
    """Write `model.gguf`, in float32, into an existing folder."""
    library = optional("gguf")
    config, name = checkpoint.config.model, architecture(checkpoint.config.model)
    writer = library.GGUFWriter(folder / FILE, name)
    writer.add_file_type(library.LlamaFileType.ALL_F32)
    writer.add_context_length(config.context)
    writer.add_embedding_length(config.n_embd)
    writer.add_block_count(config.n_layer)
    writer.add_feed_forward_length(hidden_width(config))
    writer.add_head_count(config.n_head)
    if name == "gpt2":
        writer.add_layer_norm_eps(NORM_EPS["layernorm"])
    else:
        writer.add_layer_norm_rms_eps(NORM_EPS["rmsnorm"])
        writer.add_rope_freq_base(POSITION_BASE)
    if name == "apertus":
        writer.add_xielu_alpha_p([float(XIELU_SCALE)] * config.n_layer)
        writer.add_xielu_alpha_n([-200.0] * config.n_layer)
        writer.add_xielu_beta([0.0] * config.n_layer)
        writer.add_xielu_eps([-1e-6] * config.n_layer)
    _add_tokenizer(writer, checkpoint.tokenizer)
    names = library.get_tensor_name_map(library.MODEL_ARCH[name.upper()], config.n_layer)
    for ours, theirs, array in hf.tensors(checkpoint):
        layer, _, part = theirs.rpartition(".")
        scale = math.sqrt(XIELU_SCALE) if name == "apertus" and ours.endswith("mlp.up.weight") else 1
        writer.add_tensor(f"{names.get_name(layer)}.{part}", np.ascontiguousarray(array / scale, np.float32))
    writer.add_tensor("output.weight", checkpoint.weights["token_embedding.weight"])  # apertus does not tie the two
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def architecture(model: ModelConfig) -> str:
    """Return the name of llama.cpp's architecture for a model. Raises NoCounterpartError if none fits."""
    name = hf.architecture(model, PROGRAM).model_type
    if model.activation != ACTIVATIONS[name]:
        raise NoCounterpartError(f"{PROGRAM} has no counterpart of model.activation={model.activation} in {name}")
    return name


def _add_tokenizer(writer: Any, tokenizer: Tokenizer) -> None:
    """Add the vocabulary as llama.cpp's type "rwkv", which reads the longest token at each position.

    It is the only type without special tokens. In other types, one of the characters would end the text. llama.cpp
    hangs on an out-of-vocabulary character whose first byte also begins a character of the vocabulary.
    """
    tokens = [tokenizer.spell(i) for i in range(tokenizer.vocab_size)]
    writer.add_tokenizer_model("rwkv")
    writer.add_token_list(["".join(f"\\x{byte:02x}" for byte in token) for token in tokens])
    writer.add_token_types([1] * len(tokens))  # normal tokens
    writer.add_unk_token_id(tokens.index(b" ") if b" " in tokens else 0)  # without it, an unknown byte aborts llama.cpp


def load(folder: Path) -> Logits:
    """Return a function from token ids (T,) to logits (T, V), computed by llama.cpp with a KV cache in float32.

    Raises ImportError if the package llama-cpp-python is not installed, or does not know the model.
    """
    from llama_cpp import GGML_TYPE_F32, Llama

    try:
        with contextlib.redirect_stderr(io.StringIO()):  # it warns that it rounds the context up
            model = Llama(
                str(folder / FILE), n_ctx=0, logits_all=True, verbose=False, flash_attn=False,
                type_k=GGML_TYPE_F32, type_v=GGML_TYPE_F32,
            )  # fmt: skip
    except ValueError as error:
        raise ImportError(str(error)) from error

    def logits(ids: Sequence[int]) -> Array:
        model.n_tokens = 0  # start a new text
        model.eval([int(i) for i in ids])
        scores: Array = model.scores[: len(ids)].copy()
        return scores

    return logits


def usage(folder: Path, prompt: str) -> str:
    """Return lines of Python that continue a text with llama-cpp-python."""
    context = json.loads((folder / ABOUT).read_text(encoding="utf-8"))["settings"]["model"]["context"]
    return f"""\
from llama_cpp import Llama
model = Llama({str(folder / FILE)!r}, n_ctx={context}, verbose=False)
print(model({prompt!r}, max_tokens={max(1, min(100, context - 1))})["choices"][0]["text"])"""
