"""Show attention in a terminal: the text, with each key shaded by its weight."""

from collections.abc import Sequence

from torch import Tensor

from minigpt.errors import sanitize_terminal
from minigpt.interpret.excerpt import glyph
from minigpt.interpret.images import to_colors

RESET = "\x1b[0m"
QUERY = "\x1b[48;2;213;94;0m\x1b[38;2;255;255;255m"


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


def _cell(character: str) -> str:
    return character if character == " " else sanitize_terminal(glyph(character))
