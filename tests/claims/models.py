"""Random tensors and small models of the claims.

Tensors are float64, so rounding errors stay near 1e-15, well below the tolerance EXACT.
"""

from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from small_models import randomize
from torch import Tensor, nn

from minigpt.course.small_models import small_config
from minigpt.model.gpt import GPT, Attention

EXACT = 1e-12
"""Differences below this are rounding errors."""


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def max_abs(difference: Tensor) -> float:
    """Return the largest absolute value of the elements."""
    return difference.abs().max().item()


def small_gpt(**changes: Any) -> GPT:
    """Return minigpt's model with the settings of `small_config`, a vocabulary of 12 and random weights."""
    return randomize(GPT(small_config(**changes), 12).double().eval())


def small_attention(**changes: Any) -> Attention:
    return randomize(Attention(small_config(**changes)).double().eval())


def calls(module: nn.Module, run: Callable[[], object]) -> int:
    """Call `run` and return how often it called `module`."""
    with mock.patch.object(module, "forward", wraps=module.forward) as forward:
        run()
    return int(forward.call_count)
