"""Errors: one harmless line each."""

import sys
import unicodedata

import pytest

from minigpt.errors import did_you_mean, escape, reason, sanitize_terminal


def test_escape_leaves_one_printable_line() -> None:
    for char in map(chr, range(sys.maxunicode + 1)):
        text = escape(char)
        assert text == char if char.isprintable() else (text.isascii() and text.isprintable()), hex(ord(char))
    assert escape("a\nb\x1b[31m\u202ec\x85\ud800") == r"a\nb\x1b[31m\u202ec\x85\ud800"
    assert escape(ValueError("x\ty")) == r"x\ty"


def test_sanitize_terminal_escapes_controls_line_separators_and_direction_changes() -> None:
    for number in range(sys.maxunicode + 1):
        char = chr(number)
        is_control = (
            (unicodedata.category(char) == "Cc" and char not in "\n\t")
            or unicodedata.category(char) in ("Zl", "Zp")
            or unicodedata.bidirectional(char) in ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")
        )
        assert sanitize_terminal(char) == (f"\\u{number:04x}" if is_control else char), hex(number)


@pytest.mark.parametrize(
    "attack",
    ["\x1b]0;title\x07", "\x1b[2J", "\x9b31m", "\x90q\x9c", "\r hidden", "a\bb", "\x0e", "\x7f", "\x1b[6n"],
    ids=ascii,
)
def test_terminal_sequences_are_escaped_without_loss(attack: str) -> None:
    text = sanitize_terminal(f"a{attack}b")
    assert text.isprintable()
    assert text.encode("ascii").decode("unicode_escape") == f"a{attack}b"


def test_a_reason_is_one_line() -> None:
    assert reason(OSError(28, "No space left on device")) == "No space left on device"
    assert reason(ValueError("two\nlines")) == r"two\nlines"
    assert reason(KeyError()) == "KeyError"


def test_a_similar_name_is_suggested_and_escaped() -> None:
    assert did_you_mean("shakespaere", ["shakespeare", "tiny"]) == "; did you mean shakespeare?"
    assert did_you_mean("xyz", ["shakespeare"]) == ""
    assert did_you_mean("abcde", ["abcd\n"]) == r"; did you mean abcd\n?"
