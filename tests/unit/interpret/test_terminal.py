"""Attention in a terminal."""

import torch

from minigpt.interpret import terminal


def test_text_is_shaded_by_weight() -> None:
    row = torch.tensor([0.0, 0.25, 0.5, 0.25])
    colored = terminal.colored_text(list("a\n\x1bd"), row, 3)
    assert colored.count(terminal.RESET) == 4
    assert "\x1b[48" in colored
    assert "\x1b\x1b" not in colored  # the escape character of the text is replaced
