"""Logits of a whole text, as each program that reads an export computes them."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from minigpt.config.schema import ModelConfig
from minigpt.model.load import build_model
from minigpt.storage.checkpoint import Arrays

Logits = Callable[[Sequence[int]], NDArray[np.float32]]
"""A function from token ids (T,) to logits (T, V)."""


def of_torch(model: Callable[[Tensor], Tensor]) -> Logits:
    """Return the function that a torch model computes, which maps ids (B, T) to logits (B, T, V)."""

    def logits(ids: Sequence[int]) -> NDArray[np.float32]:
        with torch.inference_mode():
            result: NDArray[np.float32] = model(torch.tensor(ids)[None])[0].numpy()
        return result

    return logits


def of_weights(config: ModelConfig, weights: Arrays) -> Logits:
    """Return the function that minigpt's own model computes with these weights, in float32 on the CPU."""
    model = build_model(config, len(weights["token_embedding.weight"])).eval()
    model.load_state_dict({name: torch.tensor(array) for name, array in weights.items()})
    return of_torch(model)
