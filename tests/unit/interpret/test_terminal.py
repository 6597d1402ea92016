"""Attention in a terminal, with and without color."""

import torch

from minigpt.interpret import terminal


def test_text_is_shaded_with_and_without_color() -> None:
    row = torch.tensor([0.0, 0.25, 0.5, 0.25])
    colored = terminal.colored_text(list("a\n\x1bd"), row, 3)
    assert colored.count(terminal.RESET) == 4
    assert "\x1b[48" in colored
    assert "\x1b\x1b" not in colored  # the escape character of the text is replaced
    assert terminal.block_text(list("a\n\x1bd"), row, 3) == "a↵\n ▓\n␛d\n█^"


def test_marks_take_no_column_and_wide_characters_two() -> None:
    """Most of these marks have the Unicode combining class 0."""
    texts = ("กำลัง", "हिन्दी", "e\u0301", "我", "a\u20dd")
    assert [terminal.display_width(text) for text in texts] == [4, 5, 1, 2, 1]


def test_blocks_are_below_their_characters() -> None:
    text = list("我a\u0301吃b")
    lines = terminal.block_text(text, torch.tensor([1.0, 0, 1.0, 0, 0]), 4, width=6).splitlines()
    assert lines == ["我a◌\u0301吃", "██ █  ", "b", "^"]
    for line, blocks in zip(lines[::2], lines[1::2], strict=True):
        assert terminal.display_width(line) == len(blocks) <= 6
