"""Pack a model's weights for the page: matrices as 8-bit integers, vectors as float32. `weights.ts` unpacks them.

Each row of a matrix has its own scale: its largest absolute value divided by 127. A weight is an integer times the
scale of its row (symmetric quantization: https://arxiv.org/abs/2004.09602, section 3.1).
"""

import base64
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
LARGEST = 127
"""The largest 8-bit integer in use. -128 is unused, so the range is symmetric."""


def pack_weights(weights: Mapping[str, Array]) -> dict[str, dict[str, Any]]:
    """Pack weights by their names in `state_dict()`.

    Args:
        weights: Matrices (rows, columns) and vectors (size), by name.

    Returns:
        `shape` and `data` of each tensor. `data` is base64: float32, or int8 if there is a `scale` (rows) as well.
        Numbers are little-endian.
    """
    packed: dict[str, dict[str, Any]] = {}
    for name, weight in weights.items():
        packed[name] = {"shape": list(weight.shape)}
        if weight.ndim < 2:
            packed[name]["data"] = _base64(weight.astype("<f4"))
        else:
            integers, scale = _quantize(weight)
            packed[name] |= {"data": _base64(integers), "scale": _base64(scale.astype("<f4"))}
    return packed


def packed_size(weights: Mapping[str, Array]) -> int:
    """Return the size in bytes of what `pack_weights` packs, before base64."""
    return sum(4 * w.size if w.ndim < 2 else w.size + 4 * len(w) for w in weights.values())


def dequantized(weights: Mapping[str, Array]) -> dict[str, Array]:
    """Return weights that are bitwise identical to those that the page unpacks."""
    page = {name: weight.astype(np.float32) for name, weight in weights.items()}
    for name, weight in weights.items():
        if weight.ndim > 1:
            integers, scale = _quantize(weight)
            page[name] = integers.astype(np.float32) * scale[:, None]
    return page


def _quantize(weight: Array) -> tuple[NDArray[np.int8], Array]:
    """Return integers (rows, columns) and scales (rows), whose products approximate a matrix (rows, columns)."""
    exact = weight.astype(np.float64)
    scale = (np.abs(exact).max(axis=1) / LARGEST).astype(np.float32)
    divisor = np.where(scale > 0, scale, 1).astype(np.float64)  # a row of zeros has scale 0
    integers = np.rint(exact / divisor[:, None]).clip(-LARGEST, LARGEST).astype(np.int8)
    return integers, scale


def _base64(values: NDArray[Any]) -> str:
    return base64.b64encode(np.ascontiguousarray(values).tobytes()).decode("ascii")
