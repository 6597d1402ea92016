"""Attention weights as PNG images: one head, or a grid of all heads."""

import io
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw
from torch import Tensor

HEAD_SIZE = 1024
"""Approximate side length of the image of one head, in pixels."""
CELL_SIZE = 160
"""Approximate side length of each head in a grid, in pixels."""
GAP, MARGIN = 6, 26
SHADES = 254
"""Number of shades from light (weight 0) to dark blue (weight 1)."""
BACKGROUND, INK = SHADES, SHADES + 1
_ramp = np.linspace((247, 251, 255), (8, 48, 107), SHADES).round()
PALETTE = np.vstack((_ramp, (255, 255, 255), (40, 40, 40))).astype(np.uint8)
"""The colors of all images, (256, 3)."""


def to_shades(weights: Tensor) -> npt.NDArray[np.uint8]:
    """Return the palette index of each weight. It grows with the square root, so that 1% is visible."""
    shades: npt.NDArray[np.uint8] = np.rint((SHADES - 1) * np.sqrt(weights.clamp(0, 1).numpy())).astype(np.uint8)
    return shades


def head_image(weights: Tensor) -> Image.Image:
    """Draw the weights (T, S) of one head: a row per query, a column per key."""
    image = _enlarged(weights, HEAD_SIZE)
    image.putpalette(PALETTE.tobytes())
    return image


def grid_image(weights: Tensor, layers: Sequence[int], heads: Sequence[int]) -> Image.Image:
    """Draw the weights (L, H, T, S) of these layers and heads: a row per layer, a column per head."""
    side = _enlarged(weights[0, 0], CELL_SIZE).width + GAP
    image = Image.new("P", (MARGIN + len(heads) * side, MARGIN + len(layers) * side), BACKGROUND)
    image.putpalette(PALETTE.tobytes())
    draw = ImageDraw.Draw(image)
    for column, head in enumerate(heads):
        draw.text((MARGIN + column * side, 8), f"head {head}", INK)
    for row, layer in enumerate(layers):
        draw.text((8, MARGIN + row * side), str(layer), INK)
        for column in range(len(heads)):
            image.paste(_enlarged(weights[row, column], CELL_SIZE), (MARGIN + column * side, MARGIN + row * side))
    return image


def to_png(image: Image.Image) -> bytes:
    """Encode an image as PNG. The same image always gives the same bytes."""
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def _enlarged(weights: Tensor, side: int) -> Image.Image:
    factor = max(1, round(side / len(weights)))
    image = Image.fromarray(to_shades(weights))
    return image.resize((factor * image.width, factor * image.height), Image.Resampling.NEAREST)
