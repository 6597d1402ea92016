"""Checkpoints with random weights."""

from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from minigpt.config.schema import FAMILIES, DataConfig, ModelConfig, RunConfig
from minigpt.interpret.excerpt import Excerpt
from minigpt.interpret.extract import Activations
from minigpt.model.gpt import GPT
from minigpt.model.recurrent import Recurrent
from minigpt.storage.checkpoint import Checkpoint
from minigpt.storage.metadata import Environment, Metadata, TrainState
from minigpt.text.tokenizer import ByteTokenizer, CharTokenizer, Tokenizer

TEXT = "First Citizen:\nBefore we proceed any further, hear me speak.\n\nAll:\nSpeak, speak.\n"


def checkpoint(
    text: str = TEXT, *, layers: int = 2, heads: int = 2, width: int = 32, context: int = 256, step: int = 100,
    loss: float | None = 1.5, byte: bool = False, seed: int = 0, name: str = "made", position: str = "rotary",
    family: str = "modern", tokenizer: Tokenizer | None = None,
) -> Checkpoint:  # fmt: skip
    """Return a checkpoint whose random weights are large enough for uneven attention."""
    tokenizer = tokenizer or (ByteTokenizer() if byte else CharTokenizer(text))
    shape = {"n_layer": layers, "n_head": heads, "n_embd": width, "context": context, "position": position}
    config = ModelConfig(**{"family": family, **FAMILIES[family], **shape})
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = GPT(config, tokenizer.vocab_size).eval()
        with torch.no_grad():
            for block in model.blocks:
                block.attention.qkv.weight.normal_(std=1 if config.qk_norm else 2 / width**0.5)
                block.attention.proj.weight.normal_(std=0.05)
                block.mlp.down.weight.normal_(std=0.05)
    metadata = Metadata(
        format=1, step=step, corpus="made", fingerprint="",
        vocab_size=tokenizer.vocab_size, parameters=1,
        runtime=Environment(device="cpu", dtype="float32", compile=False, threads=1),
        state=TrainState(step=step, validation_loss=loss),
    )  # fmt: skip
    data = DataConfig(tokenizer="byte" if byte else "char")
    weights = {key: tensor.detach().numpy() for key, tensor in model.state_dict().items()}
    return Checkpoint(RunConfig(data=data, model=config), tokenizer, metadata, weights, Path(f"/nowhere/{name}"))


def recurrent(text: str = TEXT, family: Literal["rnn", "gru", "lstm"] = "lstm") -> Checkpoint:
    """Return a checkpoint of a small recurrent network."""
    loaded = checkpoint(text)
    config = ModelConfig(family=family, **FAMILIES[family], n_layer=2, n_embd=16, context=64)
    weights = Recurrent(config, loaded.tokenizer.vocab_size).state_dict()
    return replace(
        loaded,
        config=loaded.config.model_copy(update={"model": config}),
        weights={name: tensor.numpy() for name, tensor in weights.items()},
    )


@torch.no_grad()
def excerpt(loaded: Checkpoint, text: str = TEXT, source: str = "made by hand", skipped: int = 0) -> Excerpt:
    """Return `text` as an excerpt."""
    ids = np.asarray(loaded.tokenizer.encode(text))[: loaded.config.model.context]
    return Excerpt(ids, source, skipped)


def peaked_attention(layers: int, heads: int, T: int) -> torch.Tensor:
    """Return weights (L, H, T, T) like those of trained models: near keys, the first key, and some strong keys."""
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, layers, heads, T, 16, generator=generator).unbind(0)
    distance = (torch.arange(T)[:, None] - torch.arange(T)).clamp_min(0)
    slope = torch.rand(layers, heads, 1, 1, generator=generator) * 0.2
    scores = q @ k.transpose(-2, -1) / 4 - slope * distance
    scores[..., 0] += 2
    return scores.masked_fill(torch.ones(T, T, dtype=torch.bool).triu(1), -torch.inf).softmax(-1)


def attention_stages(activations: Activations, layer: int, head: int) -> dict[str, torch.Tensor]:
    """Return the steps from queries and keys to weights, (T, T) each: raw, scaled, masked and softmax."""
    q, k = activations.q[layer, head], activations.k[layer, head]
    scaled = q @ k.T / q.size(-1) ** 0.5
    masked = scaled.masked_fill(torch.ones_like(scaled).triu(1).bool(), -torch.inf)
    return {"raw": q @ k.T, "scaled": scaled, "masked": masked, "softmax": masked.softmax(-1)}
