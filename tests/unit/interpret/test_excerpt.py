"""Every character of an excerpt is visible, and generated excerpts are what the model generates."""

import pytest
from random_models import checkpoint

from minigpt.interpret.excerpt import characters, generated_excerpt, glyph
from minigpt.text.tokenizer import ByteTokenizer


def test_every_character_has_a_visible_glyph() -> None:
    glyphs = {" ": "␣", "\n": "↵", "\t": "⇥", "\0": "␀", "a": "a", "我": "我", "\u0301": "◌\u0301", "\u2028": "U+2028"}
    glyphs |= {"\u200f": "U+200F", "\u3164": "U+3164", "\u2800": "U+2800", "\ue000": "U+E000"}
    assert {character: glyph(character) for character in glyphs} == glyphs


def test_bytes_above_127_are_escaped() -> None:
    tokenizer = ByteTokenizer()
    assert characters(tokenizer, tokenizer.encode("a é")) == ["a", " ", "\\xC3", "\\xA9"]
    assert glyph("\\xC3") == "\\xC3"


@pytest.mark.parametrize("length", [1, 30])
def test_generated_bytes_are_kept_as_tokens(length: int) -> None:
    """Decoding and encoding them again would change bytes that are not valid UTF-8."""
    loaded = checkpoint(byte=True, context=64)
    excerpt = generated_excerpt(loaded, length)
    assert len(excerpt.ids) == len(excerpt.characters) == length
    assert excerpt.ids.tolist() == generated_excerpt(loaded, length).ids.tolist()
    assert length == 1 or any(byte > 127 for byte in excerpt.ids)
