"""Attention weights as images: the heads of a model in a grid."""

import io
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from torch import Tensor

from minigpt.interpret.excerpt import glyph

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CELL_SIZE, GAP = 160, 6
"""Approximate side length of each head in a grid, and the space between heads, in pixels."""
LIGHT, DARK = np.array((247, 251, 255)), np.array((8, 48, 107))
"""The colors of the weights 0 and 1."""
LETTERS_PER_INCH = 10
"""The most letters that can be read beside each other on an axis. An axis with more has positions instead."""
SHARES = (0, 0.01, 0.1, 0.25, 0.5, 1)
"""The weights on the scale."""


def to_colors(weights: Tensor) -> npt.NDArray[np.uint8]:
    """Return the color of each weight, (..., 3). It darkens with the square root, so that 1% is visible."""
    shades = np.sqrt(weights.clamp(0, 1).numpy())[..., None]
    colors: npt.NDArray[np.uint8] = np.rint(LIGHT + shades * (DARK - LIGHT)).astype(np.uint8)
    return colors


def grid(weights: Tensor) -> npt.NDArray[np.uint8]:
    """Return the weights (L, H, T, T) as pixels (height, width, 3): a row per layer, a column per head.

    Each head has about CELL_SIZE pixels, with a row per query and a column per key.
    """
    layers, heads, T, _ = weights.shape
    factor = max(1, round(CELL_SIZE / T))
    enlarged = to_colors(weights).repeat(factor, 2).repeat(factor, 3)
    cells = np.pad(enlarged, ((0, 0), (0, 0), (0, GAP), (0, GAP), (0, 0)), constant_values=255)
    side = factor * T + GAP
    return cells.swapaxes(1, 2).reshape(layers * side, heads * side, 3)


def draw(
    weights: Tensor, layers: Sequence[int], heads: Sequence[int], characters: Sequence[str], title: str
) -> "Figure":
    """Draw the weights (L, H, T, T) of the `layers` (L) and `heads` (H), below a title and beside a scale.

    The axes name the T `characters`.
    """
    from matplotlib.colors import LinearSegmentedColormap, PowerNorm
    from matplotlib.figure import Figure

    side = max(2.0, 8 / max(len(layers), len(heads)))  # of a head, in inches
    figure = Figure((side * len(heads) + 1.5, side * len(layers) + 1), dpi=128, layout="constrained")
    figure.suptitle(title, parse_math=False)
    colors = LinearSegmentedColormap.from_list("", [LIGHT / 255, DARK / 255])
    cells = figure.subplots(len(layers), len(heads), squeeze=False, sharex=True, sharey=True)
    for (row, column), axes in np.ndenumerate(cells):
        shown = axes.imshow(weights[row, column].numpy(), colors, PowerNorm(0.5, 0, 1), interpolation="nearest")
        axes.set_title(f"layer {layers[row]}, head {heads[column]}", fontsize=9)
        axes.tick_params(labelsize=7, length=0)
    names = list(map(glyph, characters))
    if len(names) * max(map(len, names)) <= LETTERS_PER_INCH * side:
        cells[0, 0].set_xticks(range(len(names)), names, parse_math=False)
        cells[0, 0].set_yticks(range(len(names)), names, parse_math=False)
    figure.supxlabel("Each row is a letter, and each column is a letter that it attends to.", fontsize=9)
    scale = figure.colorbar(shown, ax=cells, ticks=SHARES, shrink=0.6)
    scale.ax.set_yticklabels([f"{share:.0%}" for share in SHARES], fontsize=7)
    return figure


def to_png(figure: "Figure") -> bytes:
    """Return a figure as PNG. The same figure always gives the same bytes."""
    buffer = io.BytesIO()
    with warnings.catch_warnings():  # the font has no Chinese: such names become boxes
        warnings.simplefilter("ignore")
        figure.savefig(buffer, format="png", dpi="figure", metadata={"Software": None})
    return buffer.getvalue()
