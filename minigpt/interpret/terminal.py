"""Show attention in a terminal: the text, with each key shaded by its weight."""

import unicodedata
from collections.abc import Sequence

from torch import Tensor

from minigpt.errors import sanitize_terminal
from minigpt.interpret.excerpt import glyph
from minigpt.interpret.images import to_colors

RESET = "\x1b[0m"
QUERY = "\x1b[48;2;213;94;0m\x1b[38;2;255;255;255m"
BLOCKS = " ░▒▓█"


def colored_text(characters: Sequence[str], row: Tensor, query: int) -> str:
    """Return the text up to `query`, shaded by the weights `row` (S,) relative to the largest. The query is orange."""
    colors = to_colors(row / row.max())  # (S, 3)
    parts = []
    for position, character in enumerate(characters[: query + 1]):
        red, green, blue = colors[position].tolist()
        ink = "255;255;255" if red + green + blue < 380 else "0;0;0"
        style = QUERY if position == query else f"\x1b[48;2;{red};{green};{blue}m\x1b[38;2;{ink}m"
        parts.append(f"{style}{_cell(character)}{RESET}" + ("\n" if character == "\n" else ""))
    return "".join(parts)


def block_text(characters: Sequence[str], row: Tensor, query: int, width: int = 80) -> str:
    """Return the same without color: a line of blocks below each line of text. Larger weights have fuller blocks.

    Lines wrap at `width` columns.
    """
    levels = (row / row.max()).clamp(0, 1).sqrt() * (len(BLOCKS) - 1)
    lines, column = [("", "")], 0
    for position, character in enumerate(characters[: query + 1]):
        cell = _cell(character)
        cell_width = display_width(cell)
        if column + cell_width > width:
            lines, column = [*lines, ("", "")], 0
        text, blocks = lines[-1]
        block = "^" if position == query else BLOCKS[round(levels[position].item())]
        lines[-1], column = (text + cell, blocks + block * cell_width), column + cell_width
        if character == "\n":
            lines, column = [*lines, ("", "")], 0
    return "\n".join(f"{text}\n{blocks}" for text, blocks in lines if text)


def display_width(text: str) -> int:
    """Return the number of terminal columns that `text` takes: two per wide character, none per combining mark."""
    wide = {"W": 2, "F": 2}
    combining = ("Mn", "Me")
    return sum(
        0 if unicodedata.category(c) in combining else wide.get(unicodedata.east_asian_width(c), 1) for c in text
    )


def _cell(character: str) -> str:
    return character if character == " " else sanitize_terminal(glyph(character))
