"""Tables fit the terminal."""

import re
import sys
from collections.abc import Callable, Sequence

import pytest

from minigpt.cli.output import table

TABLE = (
    ("name", "description", "size"),
    [("a", "some words that take more than a line", "1"), ("bee", "few words", "22")],
)


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Return a function that prints a table to a terminal of `width` columns, or to a pipe if `width` is None."""

    def show(width: int | None, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setattr(type(sys.stdout), "isatty", lambda self: width is not None)
        table(head, rows)
        return capsys.readouterr().out

    return show


@pytest.mark.parametrize("width", [None, 49, 80])
def test_a_table_in_a_pipe_or_a_wide_terminal_has_one_line_per_row(
    printed: Callable[..., str], width: int | None
) -> None:
    assert printed(width, *TABLE).splitlines() == [
        "name  description                            size",
        "a     some words that take more than a line  1",
        "bee   few words                              22",
    ]


def test_a_narrow_terminal_wraps_the_widest_column(printed: Callable[..., str]) -> None:
    assert printed(40, *TABLE).splitlines() == [
        "name  description                   size",
        "a     some words that take more     1",
        "      than a line",
        "bee   few words                     22",
    ]


@pytest.mark.parametrize("width", [1, 20, 40, 80, 143])
def test_columns_that_do_not_fit_follow_below_with_the_first_column(printed: Callable[..., str], width: int) -> None:
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
