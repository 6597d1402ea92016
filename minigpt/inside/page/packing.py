"""Numbers as short text for the page: bytes, deflated, in base64. `data.js` reads them back.

Attention weights are most of a page: 6 layers of 6 heads over 256 characters are 1.2 million of them. Each becomes one
byte, the number of its level. Levels are spaced like the square root, as the eye sees the shading, and none reaches
over a boundary of two decimals: what the page writes as 0.43 is a float32 weight that rounds to 0.43.
"""

import base64
import math
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

Packed = dict[str, Any]
"""What data.js reads: `type`, `shape`, and `data`; of scaled tables also `low` and `step`, one for each."""
FINENESS = 48
"""Levels that the square root of a weight has between 0 and 1, about. With 64, weights take a quarter more space."""


def _levels() -> tuple[npt.NDArray[np.intp], npt.NDArray[np.float64]]:
    """Return the first level of each of the 101 hundredths, with the end (102,), and what each level stands for."""
    first, values = [0], []
    for hundredth in range(101):
        low, high = _root_bounds(hundredth)
        count = max(1, round(FINENESS * (high - low)))
        inner = [((low + (high - low) * (part + 0.5) / count) ** 2) for part in range(count)]
        values += inner if count > 1 else [hundredth / 100]
        first.append(len(values))
    values[0] = 0.0
    return np.array(first), np.array(values)


def _root_bounds(hundredth: int) -> tuple[float, float]:
    return math.sqrt(max(0.0, hundredth - 0.5) / 100), math.sqrt(min(100.0, hundredth + 0.5) / 100)


FIRST, LEVELS = _levels()
_LOW, _HIGH = np.array([_root_bounds(hundredth) for hundredth in range(101)]).T


def to_levels(weights: npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.uint8]:
    """Return the level of each weight between 0 and 1, in the same shape."""
    exact = weights.astype(np.float64)
    hundredth = np.rint(exact * 100).astype(np.intp)
    count = np.diff(FIRST)[hundredth]
    share = (np.sqrt(exact) - _LOW[hundredth]) / (_HIGH[hundredth] - _LOW[hundredth])
    inner = np.clip((share * count).astype(np.intp), 0, count - 1)
    levels: npt.NDArray[np.uint8] = (FIRST[hundredth] + inner).astype(np.uint8)
    return levels


def from_levels(levels: npt.NDArray[np.uint8]) -> npt.NDArray[np.float64]:
    """Return the weights that the page shows for levels, in the same shape."""
    weights: npt.NDArray[np.float64] = LEVELS[levels]
    return weights


def pack_attention(weights: Tensor) -> Packed:
    """Pack weights (..., T, T): of each query its keys up to itself, row after row."""
    T = weights.size(-1)
    rows, columns = np.tril_indices(T)
    return _packed("u8", to_levels(weights.numpy()[..., rows, columns]))


def pack_whole(numbers: Tensor) -> Packed:
    """Pack whole numbers from 0 to 65535."""
    values = numbers.numpy()
    kind = "u8" if values.max(initial=0) < 256 else "u16"
    return _packed(kind, values.astype(np.uint8 if kind == "u8" else "<u2"))


def pack_scaled(tables: Tensor, steps: int) -> Packed:
    """Pack tables (N, ...) of any numbers: in each, so many equal steps from its least number to its greatest."""
    values = tables.double().flatten(1).numpy()
    low, high = values.min(1), values.max(1)
    step = np.where(high > low, (high - low) / steps, 1.0)
    numbers = np.rint((values - low[:, None]) / step[:, None])
    packed = _packed(*(("u8", numbers.astype(np.uint8)) if steps < 256 else ("u16", numbers.astype("<u2"))))
    return packed | {"shape": list(tables.shape), "low": _short(low), "step": _short(step)}


def _short(values: npt.NDArray[np.float64]) -> list[float]:
    return [float(f"{value:.9g}") for value in values]


def pack_exact(numbers: Tensor) -> Packed:
    """Pack float32 numbers as they are."""
    return _packed("f32", numbers.float().numpy().astype("<f4"))


def _packed(kind: str, values: npt.NDArray[Any]) -> Packed:
    packer = zlib.compressobj(9, strategy=zlib.Z_FILTERED)  # short repetitions among weights are chance, and cost 5 %
    deflated = packer.compress(np.ascontiguousarray(values).tobytes()) + packer.flush()
    return {"type": kind, "shape": list(values.shape), "data": base64.b64encode(deflated).decode("ascii")}
