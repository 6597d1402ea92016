"""Random numbers and a small configuration for the checks and measurements."""

from typing import Any

import torch
from torch import Tensor

from minigpt.config.schema import ModelConfig


def randn(*shape: int) -> Tensor:
    """Return the same random numbers for the same shape."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def small_config(**changes: Any) -> ModelConfig:
    """Return the settings of a small GPT-2 without biases or positional encodings, updated with `changes`."""
    gpt2 = {"family": "classic", "norm": "layernorm", "activation": "gelu", "qk_norm": False, "zero_init": False}
    small = {"n_layer": 2, "n_head": 4, "n_embd": 32, "context": 64, "bias": False, "position": "none"}
    return ModelConfig(**{**gpt2, **small, **changes})
