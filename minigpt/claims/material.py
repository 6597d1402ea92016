"""What the checks are made of: seeded numbers, small models, and a view of what passes between their parts.

Everything is float64, so that what is equal in exact arithmetic agrees to about 1e-15, and a tolerance of EXACT
tells rounding from a difference.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minigpt.config.schema import ModelConfig
from minigpt.model.gpt import GPT, Attention
from minigpt.model.kernels import TORCH
from minigpt.seeds import mix_seed

EXACT = 1e-12
"""Differences below this are rounding: some thousand times float64's own precision."""

M = TypeVar("M", bound=nn.Module)


def normal(*shape: int, claim: int, part: str = "numbers") -> Tensor:
    """Return numbers of mean 0 and variance 1, the same for a part of a claim each time, whatever else was drawn."""
    generator = torch.Generator().manual_seed(mix_seed("claim", claim, part))
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def shuffled(count: int, claim: int) -> Tensor:
    """Return 0 to count - 1 in a random order, the same for a claim each time."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(mix_seed("claim", claim, "order")))


def awake(make: Callable[[], M], claim: int) -> M:
    """Return what `make` makes with weights that all matter, the same for a claim each time.

    Models start near the identity, with biases of zero and gains of one, which would hide what a check is to
    show. Here a matrix keeps the variance of what it is given, and biases and gains are noisy.
    """
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.default_generator.manual_seed(mix_seed("claim", claim, "weights"))
        module = make().double().eval()
        for parameter in module.parameters():
            if parameter.ndim == 2:
                parameter.normal_(std=parameter.size(1) ** -0.5)
            else:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return module


def plain(**changes: Any) -> ModelConfig:
    """Return a small GPT-2 without biases and without positions, with these settings changed."""
    gpt2: dict[str, Any] = {"family": "classic", "norm": "layernorm", "activation": "gelu", "qk_norm": False}
    small: dict[str, Any] = {"n_layer": 2, "n_head": 4, "n_embd": 32, "context": 64, "zero_init": False}
    return ModelConfig(**{**gpt2, **small, "bias": False, "position": "none", **changes})


def gpt(claim: int, vocab_size: int = 12, **changes: Any) -> GPT:
    """Return minigpt's model, small and awake."""
    return awake(lambda: GPT(plain(**changes), vocab_size), claim)


def attention(claim: int, **changes: Any) -> Attention:
    """Return one attention layer of minigpt's model, small and awake."""
    return awake(lambda: Attention(plain(**changes)), claim)


def reaching(module: nn.Module, run: Callable[[], object]) -> list[Tensor]:
    """Return what is given to `module` while `run` runs, one for each time that it is called."""
    seen: list[Tensor] = []
    handle = module.register_forward_pre_hook(lambda _, given: seen.append(given[0].detach()))
    try:
        run()
    finally:
        handle.remove()
    return seen


def attend_to_all(q: Tensor, k: Tensor, v: Tensor, dropout: float = 0.0, mask: Tensor | None = None) -> Tensor:
    """Return attention without a mask, as in an encoder: each position sees every other."""
    return F.scaled_dot_product_attention(q, k, v)


ENCODER = replace(TORCH, sdpa=attend_to_all)
"""For GPT.use: makes minigpt's model an encoder, for comparison."""
