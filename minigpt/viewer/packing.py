"""Pack arrays as short text: quantize, compress with zlib, and encode in base 85. `data.js` unpacks them.

Attention weights make up most of a page: 6 layers of 6 heads over 256 characters have 1.2 million weights. Each one
becomes a byte, the index of its level. Levels are evenly spaced on a square-root scale, like the shading. Weights in
one level round to the same two decimals, so the page shows 0.43 if and only if the float32 weight rounds to 0.43.
"""

import base64
import math
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

Packed = dict[str, Any]
"""`type`, `shape` and `data` of an array. Scaled matrices also have `low` and `step`, one number per matrix."""
MAX_ROOT_ERROR = 0.0118
"""Maximum difference between the square roots of a weight and its level: three of 255 color steps."""
HTML_SAFE = bytes.maketrans(b"<>&", b".,:")
"""Replacements for the base-85 digits that are special in HTML."""


def _levels() -> tuple[npt.NDArray[np.intp], npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Build the levels.

    Returns:
        The first level of each hundredth from 0.00 to 1.00, then the number of levels, (102,).
        The square root of the smallest weight of each level, (levels,).
        The weight that each level stands for, (levels,). Level 0 is weight 0.
    """
    first, lower_bounds, values = [0], [0.0], [0.0]
    for hundredth in range(101):
        low = math.sqrt(max(MAX_ROOT_ERROR**2, (hundredth - 0.5) / 100))
        high = math.sqrt(min(100, hundredth + 0.5) / 100)
        bounds = np.linspace(low, high, math.ceil((high - low) / (2 * MAX_ROOT_ERROR)) + 1)  # (levels + 1,)
        lower_bounds += bounds[:-1].tolist()
        values += (((bounds[:-1] + bounds[1:]) / 2) ** 2).tolist() if len(bounds) > 2 else [hundredth / 100]
        first.append(len(values))
    return np.array(first), np.array(lower_bounds), np.array(values)


FIRST_LEVELS, LOWER_BOUNDS, LEVELS = _levels()


def to_levels(weights: npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.uint8]:
    """Return the level of each weight between 0 and 1, in the same shape."""
    exact = weights.astype(np.float64)
    hundredth = np.rint(exact * 100).astype(np.intp)
    found = np.searchsorted(LOWER_BOUNDS, np.sqrt(exact), side="right") - 1
    levels: npt.NDArray[np.uint8] = np.clip(found, FIRST_LEVELS[hundredth], FIRST_LEVELS[hundredth + 1] - 1).astype(
        np.uint8
    )
    return levels


def pack_attention(weights: Tensor) -> Packed:
    """Pack the lower triangles of attention weights (..., T, T), row by row."""
    rows, columns = np.tril_indices(weights.size(-1))
    return _packed("u8", to_levels(weights.numpy()[..., rows, columns]))


def pack_integers(numbers: Tensor) -> Packed:
    """Pack integers from 0 to 65535."""
    return _packed_codes(numbers.numpy(), int(numbers.max()) if numbers.numel() else 0)


def pack_scaled(tables: Tensor, steps: int) -> Packed:
    """Pack N tables, (N, ...). Quantize each one to `steps` equal steps between its minimum and maximum."""
    values = tables.double().flatten(1).numpy()
    low, high = values.min(1), values.max(1)
    step = np.where(high > low, (high - low) / steps, 1.0)
    codes = np.rint((values - low[:, None]) / step[:, None])
    packed = _packed_codes(codes, steps)
    return packed | {"shape": list(tables.shape), "low": _rounded(low), "step": _rounded(step)}


def _packed_codes(codes: npt.NDArray[Any], largest: int) -> Packed:
    return _packed("u8", codes.astype(np.uint8)) if largest < 256 else _packed("u16", codes.astype("<u2"))


def _rounded(values: npt.NDArray[np.float64]) -> list[float]:
    return [float(f"{value:.9g}") for value in values]


def pack_exact(numbers: Tensor) -> Packed:
    """Pack float32 numbers without loss."""
    return _packed("f32", numbers.float().numpy().astype("<f4"))


def _packed(kind: str, values: npt.NDArray[Any]) -> Packed:
    content = np.ascontiguousarray(values).tobytes()
    # Weights repeat mostly by chance. Encoding the repetitions can cost more than Huffman codes alone.
    compressed = min((_compressed(content, how) for how in (zlib.Z_FILTERED, zlib.Z_HUFFMAN_ONLY)), key=len)
    digits = base64.b85encode(compressed).translate(HTML_SAFE)
    return {"type": kind, "shape": list(values.shape), "data": digits.decode("ascii")}


def _compressed(content: bytes, strategy: int) -> bytes:
    compressor = zlib.compressobj(9, strategy=strategy)
    return compressor.compress(content) + compressor.flush()
