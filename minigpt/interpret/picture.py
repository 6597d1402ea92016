"""Attention as pictures: all heads in a grid, or one, as PNG."""

import io
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw
from torch import Tensor

SIDE = 1024
"""Pixels along the picture of one head, about."""
CELL = 160
"""Pixels along a head in a grid, about."""
GAP, MARGIN = 6, 26
STEPS = 254
"""Shades from light for a weight of 0 to dark blue for 1."""
PAPER, INK = STEPS, STEPS + 1
_ramp = np.linspace((247, 251, 255), (8, 48, 107), STEPS).round()
PALETTE = np.vstack((_ramp, (255, 255, 255), (40, 40, 40))).astype(np.uint8)
"""The colours of all pictures, (256, 3)."""


def shades(weights: Tensor) -> npt.NDArray[np.uint8]:
    """Return the number in the palette of each weight's colour. It grows with the root, so that 1 % shows."""
    places: npt.NDArray[np.uint8] = np.rint((STEPS - 1) * np.sqrt(weights.clamp(0, 1).numpy())).astype(np.uint8)
    return places


def head(weights: Tensor) -> Image.Image:
    """Return one head's weights (T, S) as a picture: a row for each query, its keys from left to right."""
    image = _enlarged(weights, SIDE)
    image.putpalette(PALETTE.tobytes())
    return image


def grid(weights: Tensor, layers: Sequence[int], heads: Sequence[int]) -> Image.Image:
    """Return the weights (L, H, T, S) of these layers and heads as a picture: a row of heads for each layer."""
    side = _enlarged(weights[0, 0], CELL).width + GAP
    image = Image.new("P", (MARGIN + len(heads) * side, MARGIN + len(layers) * side), PAPER)
    image.putpalette(PALETTE.tobytes())
    draw = ImageDraw.Draw(image)
    for column, number in enumerate(heads):
        draw.text((MARGIN + column * side, 8), f"head {number}", INK)
    for row, layer in enumerate(layers):
        draw.text((8, MARGIN + row * side), str(layer), INK)
        for column in range(len(heads)):
            image.paste(_enlarged(weights[row, column], CELL), (MARGIN + column * side, MARGIN + row * side))
    return image


def png(image: Image.Image) -> bytes:
    """Return the bytes of a PNG file, the same for the same picture."""
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def _enlarged(weights: Tensor, side: int) -> Image.Image:
    factor = max(1, round(side / len(weights)))
    image = Image.fromarray(shades(weights))
    return image.resize((factor * image.width, factor * image.height), Image.Resampling.NEAREST)
