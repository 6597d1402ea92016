"""Models of other programs, and checkpoints to export."""

from pathlib import Path
from typing import Any

import torch
from random_models import TEXT
from small_models import random_model, small_config
from torch import Tensor

from minigpt.config.schema import RECURRENT, DataConfig, RunConfig, SampleConfig, TrainConfig
from minigpt.model.load import build_model
from minigpt.storage.checkpoint import Checkpoint
from minigpt.storage.metadata import Environment, Metadata, TrainState
from minigpt.text.tokenizer import ByteTokenizer, CharTokenizer, Tokenizer

SETTINGS: list[dict[str, Any]] = [
    {"family": "classic"},
    {"family": "classic", "activation": "gelu_exact", "bias": False},
    {"family": "classic", "activation": "relu2"},
    {"family": "modern"},
    {"family": "modern", "activation": "gelu"},
    {"family": "modern", "activation": "gelu_exact"},
    {"family": "modern", "activation": "swiglu"},
]
"""Every combination of settings that has a counterpart in transformers, except biases of `classic`."""


def made(tokenizer: Tokenizer | None = None, loss: float | None = 1.5, **settings: Any) -> Checkpoint:
    """Return a checkpoint of a model with large random weights."""
    tokenizer = tokenizer or CharTokenizer(TEXT)
    family = settings.pop("family", "modern")
    if family in RECURRENT:
        model = build_model(small_config(family, n_head=1, **settings), tokenizer.vocab_size)
    else:
        model = random_model(family, tokenizer.vocab_size, **settings)
    weights = {name: tensor.detach().numpy() for name, tensor in model.state_dict().items()}
    metadata = Metadata(
        corpus="a/folder/text.txt", fingerprint="made", vocab_size=tokenizer.vocab_size,
        parameters=sum(array.size for array in weights.values()),
        runtime=Environment(device="cpu", dtype="float32", compile=False, threads=1),
        state=TrainState(step=10, validation_loss=loss, best_loss=loss, best_step=10),
    )  # fmt: skip
    data = DataConfig(
        source=("a/folder/text.txt",), tokenizer="byte" if isinstance(tokenizer, ByteTokenizer) else "char"
    )
    config = RunConfig(data=data, model=model.config, train=TrainConfig(steps=10), sample=SampleConfig(prompt="Be"))
    return Checkpoint(config, tokenizer, metadata, weights, Path("/nowhere/step-00000010"))


def nanogpt_tensors(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """Return the weights of a `classic` model under nanoGPT's names, as torch.compile saves them."""
    names = {
        "token_embedding": "transformer.wte", "position_embedding": "transformer.wpe", "norm": "transformer.ln_f",
        "norm1": "ln_1", "norm2": "ln_2", "attention.qkv": "attn.c_attn", "attention.proj": "attn.c_proj",
        "mlp.up": "mlp.c_fc", "mlp.down": "mlp.c_proj",
    }  # fmt: skip
    tensors: dict[str, Tensor] = {}
    for ours, array in checkpoint.weights.items():
        layer, _, part = ours.rpartition(".")
        prefix = ""
        if layer.startswith("blocks."):
            _, index, layer = layer.split(".", 2)
            prefix = f"transformer.h.{index}."
        tensors[f"_orig_mod.{prefix}{names[layer]}.{part}"] = torch.tensor(array)
    tensors["_orig_mod.lm_head.weight"] = tensors["_orig_mod.transformer.wte.weight"]
    tensors["_orig_mod.transformer.h.0.attn.bias"] = torch.ones(1, 1, 10, 10)
    return tensors


def nanogpt_file(path: Path, checkpoint: Checkpoint, **changes: Any) -> Path:
    """Write a checkpoint as nanoGPT does."""
    model = checkpoint.config.model
    arguments = {
        "n_layer": model.n_layer, "n_head": model.n_head, "n_embd": model.n_embd, "block_size": model.context,
        "bias": model.bias, "vocab_size": checkpoint.tokenizer.vocab_size, "dropout": 0.0,
    }  # fmt: skip
    content = {"model": nanogpt_tensors(checkpoint), "model_args": arguments, "iter_num": 7, "best_val_loss": 2.5}
    torch.save({**content, "config": {"batch_size": 12, "gradient_accumulation_steps": 2}, **changes}, path)
    return path
