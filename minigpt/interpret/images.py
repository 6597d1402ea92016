"""Attention weights as images: the heads of a model in a grid, or one head."""

import io
import struct
import warnings
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from minigpt.interpret.excerpt import glyph

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIZE = 1024
"""Approximate side length of a picture of few heads, in pixels."""
CELL_SIZE = 160
"""Approximate side length of each head in a grid of many, in pixels."""
GAP = 6
LEFT, TOP, BOTTOM = 56, 92, 56
"""Pixels around the grid, for the names of layers and letters, for the title and heads, and for the scale."""
TITLE = 640
"""The least width of a picture without its left edge, in pixels."""
LETTER, SPACE = 9, 36
"""The least size of a token whose letter can be read, and of the space between positions, in pixels."""
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


def draw(
    weights: Tensor, layers: Sequence[int], heads: Sequence[int], characters: Sequence[str], title: str
) -> "Figure":
    """Draw the grid of the weights (L, H, T, T), below a title and above a scale.

    Args:
        weights: Attention weights.
        layers: The numbers of the layers, (L,).
        heads: The numbers of the heads, (H,).
        characters: The T tokens. Where they are too small to read, the axes have positions instead.
        title: The title.
    """
    from matplotlib.figure import Figure

    pixels = grid(weights, max(CELL_SIZE, SIZE // max(len(layers), len(heads))))
    height, width, _ = pixels.shape
    T = len(characters)
    side, factor = width // len(heads), (width // len(heads) - GAP) // T
    full = LEFT + max(width, TITLE), TOP + height + BOTTOM
    figure = Figure((full[0] / DPI, full[1] / DPI), dpi=DPI)
    axes = figure.add_axes((LEFT / full[0], BOTTOM / full[1], width / full[0], height / full[1]))
    axes.imshow(pixels)
    axes.set_axis_off()

    def write(x: float, y: float, text: str, size: float, **alignment: Any) -> None:
        axes.text(x, y, text, fontsize=size * 72 / DPI, parse_math=False, **alignment)

    names = dict(enumerate(map(glyph, characters)))
    axis = "letter" if factor >= LETTER * max(map(len, names.values())) else "position"
    if axis == "position":
        last = max(1, T - int(SPACE / 2 / factor))  # the next grid has a number there
        names = {t: str(t) for t in range(0, last, _tick_distance(SPACE / factor))}
    write(-LEFT + 4, -TOP + 16, title, 15, va="center")
    write(-LEFT + 4, -TOP + 36, f"Each row is a {axis}, each column one that it attends to.", 12, va="center")
    for column, head in enumerate(heads):
        write(column * side + (side - GAP) / 2, -30, f"head {head}", 13, ha="center", va="center")
        for t, name in names.items():
            write(column * side + (t + 0.5) * factor, -10, name, 11, ha="center", va="center")
    for row, layer in enumerate(layers):
        write(-LEFT + 12, row * side + (side - GAP) / 2, f"layer {layer}", 13, rotation=90, ha="center", va="center")
        for t, name in names.items():
            write(-6, row * side + (t + 0.5) * factor, name, 11, ha="right", va="center")

    scale = figure.add_axes((LEFT / full[0], 34 / full[1], TITLE / full[0], 10 / full[1]))
    scale.imshow(to_colors(torch.linspace(0, 1, 256)[None] ** 2), aspect="auto", extent=(0, 1, 0, 1))
    shares = (0, 0.01, 0.1, 0.25, 0.5, 1)
    scale.set_xticks([share**0.5 for share in shares], [f"{share:.0%}" for share in shares], fontsize=11 * 72 / DPI)
    scale.set_yticks([])
    return figure


def _tick_distance(least: float) -> int:
    """Return the smallest number of at least `least` that is 1, 2 or 5 times a power of ten."""
    return next(digit * int(10**power) for power in range(9) for digit in (1, 2, 5) if digit * 10**power >= least)


def to_png(figure: "Figure") -> bytes:
    """Return a figure as PNG. The same figure always gives the same bytes."""
    buffer = io.BytesIO()
    with warnings.catch_warnings():  # the font has no Chinese: such names become boxes
        warnings.simplefilter("ignore")
        figure.savefig(buffer, format="png", dpi="figure", metadata={"Software": None})
    return buffer.getvalue()
