"""Every character of an excerpt is visible, and generated excerpts are what the model generates."""

import pytest
from random_models import checkpoint

from minigpt.interpret.excerpt import characters, generated_excerpt, glyph, opening_excerpt
from minigpt.text.tokenizer import ByteTokenizer


def test_every_character_has_a_visible_glyph() -> None:
    glyphs = {" ": "␣", "\n": "↵", "\t": "⇥", "\0": "␀", "a": "a", "我": "我", "\u0301": "◌\u0301", "\u2028": "U+2028"}
    glyphs |= {"\u200f": "U+200F", "\u3164": "U+3164", "\u2800": "U+2800", "\ue000": "U+E000"}
    assert {character: glyph(character) for character in glyphs} == glyphs


def test_bytes_above_127_are_escaped() -> None:
    tokenizer = ByteTokenizer()
    assert characters(tokenizer, tokenizer.encode("a é")) == ["a", " ", "\\xC3", "\\xA9"]


@pytest.mark.parametrize("length", [1, 30])
def test_generated_bytes_are_kept_as_tokens(length: int) -> None:
    """Decoding and encoding them again would change bytes that are not valid UTF-8."""
    loaded = checkpoint(byte=True, context=length)
    excerpt = generated_excerpt(loaded)
    assert len(excerpt.ids) == length
    assert excerpt.ids.tolist() == generated_excerpt(loaded).ids.tolist()
    assert length == 1 or any(byte > 127 for byte in excerpt.ids)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("end.\nA line.\n\nA story begins.\nIt goes on.\nAnd on and on", "A story begins.\nIt goes on.\n"),
        ("end.\nA line begins here.\nIt is long, and goes on", "A line begins here.\n"),
        ("words without any line break at all", "words without any line break at "),
        ("x" * 50, "x" * 32),
        ("x\n", "x\n"),
    ],
)
def test_an_opening_starts_and_ends_between_lines(text: str, expected: str) -> None:
    loaded = checkpoint(text, context=32)
    found = opening_excerpt(loaded, loaded.tokenizer.encode(text))
    assert loaded.tokenizer.decode(found.ids) == expected
