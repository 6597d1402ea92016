"""Hugging Face transformers: which architecture a model is, and how its settings and tensors are named there.

Only `load` imports transformers.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from minigpt.config.resolve import show
from minigpt.config.schema import ModelConfig, SampleConfig
from minigpt.config.shapes import NORM_EPS, POSITION_BASE, hidden_width, parameter_shapes
from minigpt.errors import NoCounterpartError
from minigpt.interop.card import WEIGHTS, model_card, save_arrays
from minigpt.interop.hf_tokenizer import to_tokenizers
from minigpt.interop.logits import Logits, of_torch
from minigpt.storage.checkpoint import Checkpoint

PACKAGE = "transformers"
PROGRAM = "transformers"


@dataclass(frozen=True)
class Architecture:
    """A class of transformers that computes the same function as some models of minigpt."""

    name: str
    model_type: str
    needs: Mapping[str, Any]
    """The settings of which it supports only one value."""
    activations: Mapping[str, str]
    """The names of the activations that it supports."""
    tensors: Mapping[str, tuple[str, ...]]
    """Its names for each module of minigpt. Queries, keys and values may be separate, and QK-norm may appear twice."""


GPT2 = Architecture(
    name="GPT2LMHeadModel",
    model_type="gpt2",
    needs={"position": "learned", "norm": "layernorm", "qk_norm": False},
    activations={"gelu": "gelu_new", "gelu_exact": "gelu", "relu2": "relu2"},
    tensors={
        "token_embedding": ("transformer.wte",),
        "position_embedding": ("transformer.wpe",),
        "norm1": ("transformer.h.{}.ln_1",),
        "attention.qkv": ("transformer.h.{}.attn.c_attn",),
        "attention.proj": ("transformer.h.{}.attn.c_proj",),
        "norm2": ("transformer.h.{}.ln_2",),
        "mlp.up": ("transformer.h.{}.mlp.c_fc",),
        "mlp.down": ("transformer.h.{}.mlp.c_proj",),
        "norm": ("transformer.ln_f",),
    },
)
_SHARED = {
    "token_embedding": ("model.embed_tokens",),
    "attention.qkv": tuple(f"model.layers.{{}}.self_attn.{part}_proj" for part in "qkv"),
    "attention.qk_norm": tuple(f"model.layers.{{}}.self_attn.{part}_norm" for part in "qk"),
    "attention.proj": ("model.layers.{}.self_attn.o_proj",),
    "mlp.gate": ("model.layers.{}.mlp.gate_proj",),
    "mlp.up": ("model.layers.{}.mlp.up_proj",),
    "mlp.down": ("model.layers.{}.mlp.down_proj",),
    "norm": ("model.norm",),
}
APERTUS = Architecture(
    name="ApertusForCausalLM",
    model_type="apertus",
    needs={"position": "rotary", "norm": "rmsnorm", "qk_norm": True, "bias": False},
    activations={"gelu": "gelu_new", "gelu_exact": "gelu", "relu2": "relu2"},
    tensors={
        **_SHARED,
        "norm1": ("model.layers.{}.attention_layernorm",),
        "norm2": ("model.layers.{}.feedforward_layernorm",),
    },
)
QWEN3 = Architecture(
    name="Qwen3ForCausalLM",
    model_type="qwen3",
    needs=APERTUS.needs,
    activations={"swiglu": "silu"},
    tensors={
        **_SHARED,
        "norm1": ("model.layers.{}.input_layernorm",),
        "norm2": ("model.layers.{}.post_attention_layernorm",),
    },
)


def architecture(model: ModelConfig, program: str = PROGRAM) -> Architecture:
    """Return the architecture of a model. Raise NoCounterpartError, which names `program`, if none fits."""
    if model.is_recurrent or model.position not in ("learned", "rotary"):
        wrong = "family" if model.is_recurrent else "position"
        raise NoCounterpartError(f"{program} has no counterpart of model.{wrong}={getattr(model, wrong)}")
    rotary = QWEN3 if model.activation == "swiglu" else APERTUS
    nearest = GPT2 if model.position == "learned" else rotary
    allowed = {key: [value] for key, value in nearest.needs.items()} | {"activation": [*nearest.activations]}
    for key, values in allowed.items():
        if (value := getattr(model, key)) not in values:
            problem = f"model.{key}={show(value)} with model.position={model.position}"
            raise NoCounterpartError(f"{program} has no counterpart of {problem}: {nearest.name} is the nearest")
    return nearest


def config_json(model: ModelConfig, vocab_size: int) -> dict[str, Any]:
    """Return the content of config.json. It sets what differs from the defaults of transformers."""
    kind = architecture(model)
    common = {
        "architectures": [kind.name],
        "model_type": kind.model_type,
        "dtype": "float32",
        "vocab_size": vocab_size,
        "tie_word_embeddings": True,
        "bos_token_id": None,  # the default ids are ordinary characters here
        "eos_token_id": None,
        "pad_token_id": None,
    }
    activation = kind.activations[model.activation]
    if kind is GPT2:
        return common | {
            "n_positions": model.context,
            "n_embd": model.n_embd,
            "n_layer": model.n_layer,
            "n_head": model.n_head,
            "activation_function": activation,
            "layer_norm_epsilon": NORM_EPS["layernorm"],
            "embd_pdrop": model.dropout,
            "attn_pdrop": model.dropout,
            "resid_pdrop": model.dropout,
        }
    sliding = {"use_sliding_window": False} if kind is QWEN3 else {}
    return common | {
        "max_position_embeddings": model.context,
        "hidden_size": model.n_embd,
        "intermediate_size": hidden_width(model),
        "num_hidden_layers": model.n_layer,
        "num_attention_heads": model.n_head,
        "num_key_value_heads": model.n_head,
        "head_dim": model.head_size,
        "hidden_act": activation,
        "rms_norm_eps": NORM_EPS["rmsnorm"],
        "rope_parameters": {"rope_type": "default", "rope_theta": POSITION_BASE},
        "attention_bias": False,
        "attention_dropout": model.dropout,
        **sliding,
    }


def generation_json(sample: SampleConfig, context: int) -> dict[str, Any]:
    """Return the content of generation_config.json: sample as `minigpt sample` does, up to the context."""
    if not sample.temperature:
        return {"max_length": context, "do_sample": False}
    return {
        "max_length": context,
        "do_sample": True,
        "temperature": sample.temperature,
        "top_k": sample.top_k,  # 0 is off here too; without it, transformers would use 50
        "top_p": sample.top_p,
        **({"min_p": sample.min_p} if sample.min_p else {}),
    }


def their_names(kind: Architecture, ours: str) -> list[str]:
    """Return the names of one of our tensors in transformers."""
    layer, part = re.fullmatch(r"(.*)\.(weight|bias)", ours).groups()  # type: ignore[union-attr]
    block = re.fullmatch(r"blocks\.(\d+)\.(.*)", layer)
    index, key = block.groups() if block else ("", layer)
    return [f"{name.format(index)}.{part}" for name in kind.tensors[key]]


def tensors(checkpoint: Checkpoint) -> Iterator[tuple[str, str, NDArray[np.float32]]]:
    """Yield our name, transformers' name and the array of each tensor. The tied output matrix is not repeated.

    In GPT2, all linear layers and norms have biases, zero for models without biases. Other architectures have none.
    """
    model, weights = checkpoint.config.model, checkpoint.weights
    kind = architecture(model)
    shapes = parameter_shapes(model.model_copy(update={"bias": kind is GPT2}), checkpoint.tokenizer.vocab_size)
    for ours, shape in shapes.items():
        array = weights[ours] if ours in weights else np.zeros(shape, np.float32)
        names = their_names(kind, ours)
        pieces = [array] * len(names) if "qk_norm" in ours else np.split(array, len(names))
        for name, piece in zip(names, pieces, strict=True):
            yield ours, name, piece


def write(checkpoint: Checkpoint, folder: Path) -> None:
    """Write the files that `from_pretrained` reads, and a model card."""
    model, tokenizer = checkpoint.config.model, checkpoint.tokenizer
    config = config_json(model, tokenizer.vocab_size)  # raises before anything is written
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": model.context,
        "model_input_names": ["input_ids", "attention_mask"],
        "clean_up_tokenization_spaces": False,
    }
    documents = {
        "config.json": config,
        "generation_config.json": generation_json(checkpoint.config.sample, model.context),
        "tokenizer.json": to_tokenizers(tokenizer),
        "tokenizer_config.json": tokenizer_config,
    }
    for name, document in documents.items():
        text = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
        (folder / name).write_text(text, encoding="utf-8", newline="\n")
    is_gpt2 = architecture(model) is GPT2  # whose linear layers have matrices (in, out)
    arrays = {
        name: array.T if is_gpt2 and re.search(r"(attention|mlp)\.\w+\.weight", ours) else array
        for ours, name, array in tensors(checkpoint)
    }
    save_arrays(arrays, folder / WEIGHTS, {"format": "pt"})
    (folder / "README.md").write_text(model_card(checkpoint, config["architectures"][0]), "utf-8", newline="\n")


def load(folder: Path) -> Logits:
    """Load the folder with transformers."""
    from transformers import AutoModelForCausalLM, TokenizersBackend, logging  # noqa: F401 - older versions lack it

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True, dtype=torch.float32).eval()
    return of_torch(lambda ids: model(ids).logits)


def usage(folder: Path, prompt: str) -> str:
    """Return lines of Python that use the folder."""
    return f"""\
from transformers import pipeline
generate = pipeline("text-generation", model={str(folder)!r})
print(generate({prompt!r})[0]["generated_text"])"""
