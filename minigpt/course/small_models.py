"""Seeded random tensors and small models for the checks.

Tensors are float64, so rounding errors stay near 1e-15, well below the tolerance EXACT.
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
"""Differences below this are rounding errors."""

M = TypeVar("M", bound=nn.Module)


def randn(*shape: int) -> Tensor:
    """Return the same random numbers for the same shape."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def normal(*shape: int, claim: int, part: str = "numbers") -> Tensor:
    """Return standard normal values that depend only on the shape, the claim and the part."""
    generator = torch.Generator().manual_seed(mix_seed("claim", claim, part))
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def permutation(count: int, claim: int) -> Tensor:
    """Return a random permutation of 0 to count - 1 that depends only on the count and the claim."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(mix_seed("claim", claim, "order")))


def randomize(make: Callable[[], M], claim: int) -> M:
    """Return the module that `make` builds, with random weights that depend only on the claim.

    A new model starts near the identity, with zero biases and unit gains. That would hide the effect of many
    parts. Here matrices preserve the variance of their input, and biases and gains are noisy.
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


def small_config(**changes: Any) -> ModelConfig:
    """Return the settings of a small GPT-2 without biases or positions, updated with `changes`."""
    gpt2: dict[str, Any] = {"family": "classic", "norm": "layernorm", "activation": "gelu", "qk_norm": False}
    small: dict[str, Any] = {"n_layer": 2, "n_head": 4, "n_embd": 32, "context": 64, "zero_init": False}
    return ModelConfig(**{**gpt2, **small, "bias": False, "position": "none", **changes})


def small_gpt(claim: int, vocab_size: int = 12, **changes: Any) -> GPT:
    """Return minigpt's model with `small_config` settings and random weights."""
    return randomize(lambda: GPT(small_config(**changes), vocab_size), claim)


def small_attention(claim: int, **changes: Any) -> Attention:
    """Return one attention layer with `small_config` settings and random weights."""
    return randomize(lambda: Attention(small_config(**changes)), claim)


def record_inputs(module: nn.Module, run: Callable[[], object]) -> list[Tensor]:
    """Call `run` and return the first input of each call to `module`."""
    inputs: list[Tensor] = []
    handle = module.register_forward_pre_hook(lambda _, args: inputs.append(args[0].detach()))
    try:
        run()
    finally:
        handle.remove()
    return inputs


def sdpa_unmasked(q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor:
    """Compute attention without a causal mask, as in an encoder."""
    return F.scaled_dot_product_attention(q, k, v)


ENCODER = replace(TORCH, sdpa=sdpa_unmasked)
"""Kernels that turn minigpt's model into an encoder."""
