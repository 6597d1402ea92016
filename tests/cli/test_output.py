"""Tables are as wide as what they are printed to."""

import re
import sys
from collections.abc import Callable, Sequence

import pytest

from minigpt.cli.output import table

TABLE = (
    ("name", "what it is", "size"),
    [("a", "some words that take more than a line", "1"), ("bee", "few words", "22")],
)


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Print a table to a terminal of so many columns, or with none to a pipe."""

    def print_it(width: int | None, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setattr(type(sys.stdout), "isatty", lambda self: width is not None)
        table(head, rows)
        return capsys.readouterr().out

    return print_it


@pytest.mark.parametrize("width", [None, 49, 80])
def test_a_table_that_fits_or_goes_to_a_pipe_has_a_line_for_each_row(
    printed: Callable[..., str], width: int | None
) -> None:
    assert printed(width, *TABLE).splitlines() == [
        "name  what it is                             size",
        "a     some words that take more than a line  1",
        "bee   few words                              22",
    ]


def test_a_table_wider_than_the_terminal_wraps_its_widest_column(printed: Callable[..., str]) -> None:
    assert printed(40, *TABLE).splitlines() == [
        "name  what it is                    size",
        "a     some words that take more     1",
        "      than a line",
        "bee   few words                     22",
    ]


@pytest.mark.parametrize("width", [1, 20, 40, 80, 143])
def test_columns_for_which_there_is_no_room_stand_below_beside_the_first_again(
    printed: Callable[..., str], width: int
) -> None:
    head = ["head", *(f"score {n}" for n in range(12))]
    rows = [[f"0.{row}", *(f"{row * n:07.2f}" for n in range(12))] for row in range(3)]
    blocks = [
        [re.split("  +", line) for line in block.splitlines()] for block in printed(width, head, rows).split("\n\n")
    ]
    assert all(len(line) <= max(width, 14) for line in printed(width, head, rows).splitlines())
    assert [[*blocks[0][n][:1], *(cell for block in blocks for cell in block[n][1:])] for n in range(4)] == [
        head,
        *rows,
    ]
    assert all(block[n][0] == line[0] for block in blocks for n, line in enumerate([head, *rows]))
