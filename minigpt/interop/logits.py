"""Logits of a whole text, as each program that reads an export computes them."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Logits = Callable[[Sequence[int]], NDArray[np.float32]]
"""A function from token ids (T,) to logits (T, V)."""


def of_torch(model: Callable[[Tensor], Tensor]) -> Logits:
    """Return the function that a torch model computes, which maps ids (B, T) to logits (B, T, V)."""

    def logits(ids: Sequence[int]) -> NDArray[np.float32]:
        with torch.inference_mode():
            result: NDArray[np.float32] = model(torch.tensor(ids)[None])[0].numpy()
        return result

    return logits
