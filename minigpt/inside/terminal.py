"""Attention in a terminal: the text, each character on a ground as dark as the query looks at it."""

from collections.abc import Sequence

from torch import Tensor

from minigpt.errors import visible
from minigpt.inside.passage import glyph
from minigpt.inside.picture import PALETTE, shades

RESET = "\x1b[0m"
QUERY = "\x1b[48;2;213;94;0m\x1b[38;2;255;255;255m"
SHADES = " ░▒▓█"


def coloured(characters: Sequence[str], row: Tensor, query: int) -> str:
    """Return the text up to the query on grounds as dark as its weights (S,) to the largest, the query in orange."""
    colours = PALETTE[shades(row / row.max())]  # (S, 3)
    parts = []
    for place, character in enumerate(characters[: query + 1]):
        red, green, blue = colours[place].tolist()
        ink = "255;255;255" if red + green + blue < 380 else "0;0;0"
        ground = QUERY if place == query else f"\x1b[48;2;{red};{green};{blue}m\x1b[38;2;{ink}m"
        parts.append(f"{ground}{_cell(character)}{RESET}" + ("\n" if character == "\n" else ""))
    return "".join(parts)


def shaded(characters: Sequence[str], row: Tensor, query: int) -> str:
    """Return the same without colours: below each line of the text one of blocks, fuller for larger weights."""
    depths = (row / row.max()).clamp(0, 1).sqrt() * (len(SHADES) - 1)
    lines, blocks = [""], [""]
    for place, character in enumerate(characters[: query + 1]):
        cell = _cell(character)
        lines[-1] += cell
        blocks[-1] += ("^" if place == query else SHADES[round(depths[place].item())]) * len(cell)
        if character == "\n":
            lines.append("")
            blocks.append("")
    return "\n".join(f"{line}\n{block}" for line, block in zip(lines, blocks, strict=True) if line)


def _cell(character: str) -> str:
    return character if character == " " else visible(glyph(character))
