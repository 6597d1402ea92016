"""Attention in a terminal: the text, each character on a ground as dark as the query looks at it."""

import unicodedata
from collections.abc import Sequence

from torch import Tensor

from minigpt.errors import sanitize_terminal
from minigpt.interpret.passage import glyph
from minigpt.interpret.picture import PALETTE, shades

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


def shaded(characters: Sequence[str], row: Tensor, query: int, width: int = 80) -> str:
    """Return the same without colours: below each line of `width` columns one of blocks, fuller for larger weights."""
    depths = (row / row.max()).clamp(0, 1).sqrt() * (len(SHADES) - 1)
    lines, column = [("", "")], 0
    for place, character in enumerate(characters[: query + 1]):
        cell = _cell(character)
        taken = columns(cell)
        if column + taken > width:
            lines, column = [*lines, ("", "")], 0
        text, blocks = lines[-1]
        block = "^" if place == query else SHADES[round(depths[place].item())]
        lines[-1], column = (text + cell, blocks + block * taken), column + taken
        if character == "\n":
            lines, column = [*lines, ("", "")], 0
    return "\n".join(f"{text}\n{blocks}" for text, blocks in lines if text)


def columns(text: str) -> int:
    """Return how many columns of a terminal `text` takes: two for a wide character, none for one that combines."""
    wide = {"W": 2, "F": 2}
    combines = ("Mn", "Me")
    return sum(0 if unicodedata.category(c) in combines else wide.get(unicodedata.east_asian_width(c), 1) for c in text)


def _cell(character: str) -> str:
    return character if character == " " else sanitize_terminal(glyph(character))
