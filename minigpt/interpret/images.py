"""Attention weights as images: the heads of a model in a grid, or one head."""

import io
import struct
import warnings
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from torch import Tensor

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIZE = 1024
"""Approximate side length of a picture of few heads, in pixels."""
CELL_SIZE = 160
"""Approximate side length of each head in a grid of many, in pixels."""
GAP, MARGIN = 6, 26
LIGHT, DARK = np.array((247, 251, 255)), np.array((8, 48, 107))
"""The colors of the weights 0 and 1."""
DPI = 128


def to_colors(weights: Tensor) -> npt.NDArray[np.uint8]:
    """Return the color of each weight, (..., 3). It darkens with the square root, so that 1% is visible."""
    shades = np.sqrt(weights.clamp(0, 1).numpy())[..., None]
    colors: npt.NDArray[np.uint8] = np.rint(LIGHT + shades * (DARK - LIGHT)).astype(np.uint8)
    return colors


def grid(weights: Tensor, side: int = CELL_SIZE) -> npt.NDArray[np.uint8]:
    """Return the weights (L, H, T, T) as pixels (height, width, 3): a row per layer, a column per head.

    Each head has about `side` pixels, with a row per query and a column per key.
    """
    layers, heads, T, _ = weights.shape
    factor = max(1, round(side / T))
    enlarged = to_colors(weights).repeat(factor, 2).repeat(factor, 3)
    cells = np.pad(enlarged, ((0, 0), (0, 0), (0, GAP), (0, GAP), (0, 0)), constant_values=255)
    side = factor * T + GAP
    return cells.swapaxes(1, 2).reshape(layers * side, heads * side, 3)


def small_png(pixels: npt.NDArray[np.uint8]) -> bytes:
    """Return pixels (height, width, 3) as PNG, without matplotlib, which takes a second to import."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        checksum = zlib.crc32(kind + content)
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", checksum)

    height, width, _ = pixels.shape
    rows = np.pad(pixels.reshape(height, 3 * width), ((0, 0), (1, 0)))  # each row starts with its filter, none
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)  # 8 bits, RGB
    parts = (chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(rows.tobytes(), 9)), chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def draw(weights: Tensor, layers: Sequence[int], heads: Sequence[int]) -> "Figure":
    """Draw the grid of the weights (L, H, T, T) with the numbers of these layers and heads."""
    from matplotlib.figure import Figure

    pixels = grid(weights, max(CELL_SIZE, SIZE // max(len(layers), len(heads))))
    height, width, _ = pixels.shape
    figure = Figure(((width + MARGIN) / DPI, (height + MARGIN) / DPI), dpi=DPI)
    axes = figure.add_axes((MARGIN / (width + MARGIN), 0, width / (width + MARGIN), height / (height + MARGIN)))
    axes.imshow(pixels)
    axes.spines[:].set_visible(False)
    axes.xaxis.tick_top()
    axes.tick_params(length=0, labelsize=8)
    axes.set_xticks((np.arange(len(heads)) + 0.5) * width / len(heads), [f"head {head}" for head in heads])
    names = [f"layer {layer}" for layer in layers]
    axes.set_yticks((np.arange(len(layers)) + 0.5) * height / len(layers), names, rotation=90, va="center")
    return figure


def to_png(figure: "Figure") -> bytes:
    """Return a figure as PNG. The same figure always gives the same bytes."""
    buffer = io.BytesIO()
    with warnings.catch_warnings():  # the font has no Chinese: such names become boxes
        warnings.simplefilter("ignore")
        figure.savefig(buffer, format="png", dpi="figure", metadata={"Software": None})
    return buffer.getvalue()
