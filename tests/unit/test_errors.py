"""Messages: one harmless line; and samples that cannot drive a terminal."""

import sys
import unicodedata

import pytest

from minigpt.errors import UserError, did_you_mean, escape, reason, sanitize_terminal

KEPT = {"\n", "\t"}


def test_shown_is_one_printable_line_that_tells_what_was_there() -> None:
    for c in map(chr, range(sys.maxunicode + 1)):
        text = escape(c)
        assert text == c if c.isprintable() else (text.isascii() and text.isprintable()), hex(ord(c))
    assert escape("a\nb\x1b[31m\u202ec\x85\ud800") == r"a\nb\x1b[31m\u202ec\x85\ud800"
    assert escape(ValueError("x\ty")) == r"x\ty"


def test_visible_lets_through_all_but_what_drives_a_terminal() -> None:
    """Every control character but line end and tab, every override of the direction, every separator of lines."""
    for number in range(sys.maxunicode + 1):
        c = chr(number)
        drives = (
            (unicodedata.category(c) == "Cc" and c not in KEPT)
            or unicodedata.category(c) in ("Zl", "Zp")
            or unicodedata.bidirectional(c) in ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")
        )
        assert sanitize_terminal(c) == (f"\\u{number:04x}" if drives else c), hex(number)


@pytest.mark.parametrize("text", ["plain\n\ttext\n", "שלום عالم", "👩‍🚀 e\u0301", "春眠不覺曉", "\\x1b", ""])
def test_visible_leaves_every_script_as_it_is(text: str) -> None:
    assert sanitize_terminal(text) == text


@pytest.mark.parametrize(
    "attack",
    ["\x1b]0;title\x07", "\x1b[2J", "\x9b31m", "\x90q\x9c", "\r hidden", "a\bb", "\x0e", "\x7f", "\x1b[6n"],
    ids=ascii,
)
def test_no_sequence_known_to_terminals_gets_through(attack: str) -> None:
    text = sanitize_terminal(f"a{attack}b")
    assert text.isprintable()
    assert text.encode("ascii").decode("unicode_escape") == f"a{attack}b", "nothing is lost"


def test_a_reason_is_the_systems_or_the_errors_own_in_one_line() -> None:
    assert reason(OSError(28, "No space left on device")) == "No space left on device"
    assert reason(ValueError("two\nlines")) == r"two\nlines"
    assert reason(KeyError()) == "KeyError"


def test_a_near_name_is_suggested_harmlessly() -> None:
    assert did_you_mean("shakespaere", ["shakespeare", "tiny"]) == "; did you mean shakespeare?"
    assert did_you_mean("xyz", ["shakespeare"]) == ""
    assert did_you_mean("abcde", ["abcd\n"]) == r"; did you mean abcd\n?"
    assert issubclass(UserError, Exception)
