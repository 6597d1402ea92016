"""Numbers as short text for the page: bytes, deflated, in base 85. `data.js` reads them back.

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
CLOSE = 0.0118
"""How far the root of a weight lies from that of its level at most: three of the 255 steps of a colour."""
SAFE = bytes.maketrans(b"<>&", b".,:")
"""The digits of base 85 that mean something in HTML, and what stands for them."""


def _levels() -> tuple[npt.NDArray[np.intp], npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return three arrays.

    The number of the first level of each of the 101 hundredths, and one past the last level, (102,); where each level
    begins, as the root of a weight, (levels,); the weight that each stands for, (levels,). Level 0 stands for 0.
    """
    first, begins, values = [0], [0.0], [0.0]
    for hundredth in range(101):
        low = math.sqrt(max(CLOSE**2, (hundredth - 0.5) / 100))
        high = math.sqrt(min(100, hundredth + 0.5) / 100)
        bounds = np.linspace(low, high, math.ceil((high - low) / (2 * CLOSE)) + 1)  # (levels + 1,)
        begins += bounds[:-1].tolist()
        values += (((bounds[:-1] + bounds[1:]) / 2) ** 2).tolist() if len(bounds) > 2 else [hundredth / 100]
        first.append(len(values))
    return np.array(first), np.array(begins), np.array(values)


FIRST, BEGINS, LEVELS = _levels()


def to_levels(weights: npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.uint8]:
    """Return the level of each weight between 0 and 1, in the same shape."""
    exact = weights.astype(np.float64)
    hundredth = np.rint(exact * 100).astype(np.intp)
    found = np.searchsorted(BEGINS, np.sqrt(exact), side="right") - 1
    levels: npt.NDArray[np.uint8] = np.clip(found, FIRST[hundredth], FIRST[hundredth + 1] - 1).astype(np.uint8)
    return levels


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
    content = np.ascontiguousarray(values).tobytes()
    deflated = min((_deflated(content, how) for how in (zlib.Z_FILTERED, zlib.Z_HUFFMAN_ONLY)), key=len)
    digits = base64.b85encode(deflated).translate(SAFE)
    return {"type": kind, "shape": list(values.shape), "data": digits.decode("ascii")}


def _deflated(content: bytes, strategy: int) -> bytes:
    """Return `content` deflated: with Z_HUFFMAN_ONLY without the repetitions that are mostly chance among weights."""
    packer = zlib.compressobj(9, strategy=strategy)
    return packer.compress(content) + packer.flush()
