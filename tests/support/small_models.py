"""Models of two layers, with every combination of the network's switches."""

import itertools
import math
from typing import Any, TypeVar, get_args

import torch
from torch import Tensor, nn

from minigpt.config.schema import FAMILIES, ModelConfig
from minigpt.model.gpt import GPT

M = TypeVar("M", bound=nn.Module)
V = 13
FAMILY_NAMES = tuple(FAMILIES)
SWITCHES: list[dict[str, Any]] = [
    {"position": position, "norm": norm, "activation": activation, "qk_norm": qk_norm, "bias": bias}
    for position, norm, activation, qk_norm, bias in itertools.product(
        ("learned", "sinusoidal", "rotary", "none"),
        ("layernorm", "rmsnorm"),
        get_args(ModelConfig.model_fields["activation"].annotation),
        (False, True),
        (False, True),
    )
]


def switch_names(switches: dict[str, Any]) -> str:
    return "-".join(str(value) for value in switches.values())


def small_config(family: str, **changes: Any) -> ModelConfig:
    small = {"n_layer": 2, "n_head": 2, "n_embd": 16, "context": 10}
    return ModelConfig(**{"family": family, **FAMILIES[family], **small, **changes})


def untrained_model(family: str, vocab_size: int = V, **changes: Any) -> GPT:
    torch.manual_seed(0)
    return GPT(small_config(family, **changes), vocab_size).eval()


def random_model(family: str, vocab_size: int = V, **changes: Any) -> GPT:
    return randomize(untrained_model(family, vocab_size, **changes), gain=1.5)


def randomize(module: M, gain: float = 1.0) -> M:
    """Give a module large random weights, and return it. Those of a new one hardly change the residual stream."""
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim == 2:
                parameter.normal_(std=gain / math.sqrt(parameter.size(1)))
            else:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return module


def some_ids(*shape: int, vocab_size: int = V) -> Tensor:
    return torch.randint(vocab_size, shape, generator=torch.Generator().manual_seed(1))
