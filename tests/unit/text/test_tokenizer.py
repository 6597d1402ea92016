"""Text to ids and back, for any Unicode text and any vocabulary size."""

import json

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import example, given

from minigpt.errors import UserError
from minigpt.text.tokenizer import ByteTokenizer, CharTokenizer, Tokenizer, from_json

ODD = "plain é 😀👩‍👩‍👧 e\u0301 漢字 \0\t\r\n \u2028 \x85 \ufeff \U0010ffff ﬁ İ ß"


def error_of(tokenizer: Tokenizer, text: str) -> str:
    with pytest.raises(UserError) as caught:
        tokenizer.encode(text)
    assert str(caught.value).isprintable(), "an error is one line"
    return str(caught.value)


# --- round trips ---------------------------------------------------------------------------------------


@given(st.text(min_size=1), st.text())
@example(ODD, "")
@example("a" * 300, "Zz")
def test_any_text_round_trips_and_ids_follow_code_points(text: str, more: str) -> None:
    tokenizer = CharTokenizer(text + more)
    ids = tokenizer.encode(text)
    chars = sorted(set(text + more))
    assert ids.tolist() == [chars.index(char) for char in text]
    assert tokenizer.decode(ids) == text
    assert tokenizer.characters(ids) == len(text)
    assert "".join(map(tokenizer.decoder(), ids.tolist())) == text
    again = from_json(tokenizer.to_json(), "a copy")
    assert isinstance(again, CharTokenizer)
    assert again.chars == tokenizer.chars


@given(st.text())
@example(ODD)
def test_the_byte_tokenizer_encodes_any_text(text: str) -> None:
    tokenizer = ByteTokenizer()
    ids = tokenizer.encode(text)
    assert bytes(ids.tolist()) == text.encode()
    assert tokenizer.decode(ids) == text
    assert tokenizer.characters(ids) == len(text)


@pytest.mark.parametrize(
    ("size", "dtype"),
    [(1, "uint8"), (255, "uint8"), (256, "uint16"), (65_535, "uint16"), (65_536, "uint32")],
)
@pytest.mark.parametrize("first", [1, 0xE000])
def test_ids_have_the_smallest_type(size: int, dtype: str, first: int) -> None:
    """It also holds an id for unknown characters."""
    first = max(first, 0xE000) if size > 50_000 else first  # clear of the surrogates
    chars = [chr(first + i) for i in range(size)]
    tokenizer = CharTokenizer(chars)
    ids = tokenizer.encode("".join(chars), dtype=tokenizer.dtype)
    assert tokenizer.encode("".join(chars)).dtype == np.int64
    assert (tokenizer.vocab_size, ids.dtype) == (size, np.dtype(dtype))
    assert ids.tolist() == list(range(size))
    for absent in (chr(first - 1), chr(first + size), "\U0010ffff"):
        assert f"U+{ord(absent):04X}" in error_of(tokenizer, chars[-1] + absent)
        assert tokenizer.encode(chars[-1] + absent, "skip").tolist() == [size - 1]
    ascii_text = "".join(char for char in chars if char.isascii())
    assert tokenizer.decode(tokenizer.encode(ascii_text)) == ascii_text


@given(st.text(min_size=1))
@example("é漢😀")
def test_bytes_decoded_one_at_a_time_are_the_text(text: str) -> None:
    decode = ByteTokenizer().decoder()
    pieces = [decode(byte) for byte in text.encode()]
    assert "".join(pieces) == text
    assert all(len(piece) <= 1 for piece in pieces), "a character appears with its last byte"


def test_decoders_are_independent() -> None:
    tokenizer = ByteTokenizer()
    one, other = tokenizer.decoder(), tokenizer.decoder()
    assert [one(0xC3), other(0x61), one(0xA9)] == ["", "a", "é"]


def test_a_character_counts_where_it_begins() -> None:
    ids = ByteTokenizer().encode("aé漢😀")
    assert [ByteTokenizer().characters(ids[i:]) for i in range(len(ids) + 1)] == [4, 3, 2, 2, 1, 1, 1, 0, 0, 0, 0]


# --- unknown characters --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("char", "vocabulary", "nearest"),
    [
        ("é", "abcdefgh", "e"),
        ("É", "abcdefgh", "e"),
        ("Z", "axyz", "z"),
        ("z", "AXYZ", "Z"),
        ("“", "\"'abc", '"'),
        ("’", "\"'abc", "'"),
        ("–", "-abc", "-"),
        ("…", ".abc", "."),
        ("\u00a0", " abc", " "),
        ("ﬁ", "aFIZ", "F"),  # swapcase gives "FI", two characters
        ("漢", "漠字a", "漠"),
        ("😀", "😁a", "😁"),
        ("\0", "ab", "a"),
    ],
)
def test_replace_uses_the_nearest_character(char: str, vocabulary: str, nearest: str) -> None:
    tokenizer = CharTokenizer(vocabulary)
    assert tokenizer.nearest(char) == nearest
    text = vocabulary[-1] + char + char + vocabulary[0]
    assert tokenizer.decode(tokenizer.encode(text, "replace")) == text.replace(char, nearest)
    assert tokenizer.decode(tokenizer.encode(text, "skip")) == text.replace(char, "")


@given(st.text(), st.text(min_size=1))
def test_skip_and_replace_change_only_what_is_unknown(text: str, vocabulary: str) -> None:
    tokenizer = CharTokenizer(vocabulary)
    replaced = tokenizer.decode(tokenizer.encode(text, "replace"))
    assert len(replaced) == len(text)
    assert all(new == old for new, old in zip(replaced, text, strict=True) if old in vocabulary)
    assert tokenizer.decode(tokenizer.encode(text, "skip")) == "".join(char for char in text if char in vocabulary)


def test_an_error_names_unknown_characters() -> None:
    tokenizer = CharTokenizer("abcde \n")
    assert error_of(tokenizer, "a bé é") == "outside the vocabulary: 'é' (U+00E9 LATIN SMALL LETTER E WITH ACUTE)"
    assert error_of(tokenizer, "a bé é?") == "outside the vocabulary: 'é', '?'"
    assert error_of(tokenizer, "1234567890").endswith(": '1', '2', '3', '4', '5', '6', '7', '8', and 2 more")


@pytest.mark.parametrize("tokenizer", [CharTokenizer("ab"), ByteTokenizer()])
def test_an_invalid_choice_is_an_error(tokenizer: Tokenizer) -> None:
    with pytest.raises(ValueError, match="unknown must be one of error, skip, replace, not 'bad'"):
        tokenizer.encode("ab", "bad")  # type: ignore[arg-type]


def test_a_lone_surrogate_is_unknown() -> None:
    """Python decodes invalid bytes of the command line to lone surrogates."""
    assert "'\\udcff' (U+DCFF no name)" in error_of(ByteTokenizer(), "a\udcff")
    assert bytes(ByteTokenizer().encode("a\udcffb", "skip").tolist()) == b"ab"
    assert bytes(ByteTokenizer().encode("a\udcffb", "replace").tolist()) == b"a?b"
    assert "U+DCFF" in error_of(CharTokenizer("ab"), "a\udcff")
    assert CharTokenizer("ab").encode("a\udcffb", "skip").tolist() == [0, 1]


# --- JSON ----------------------------------------------------------------------------------------------


def test_the_json_format() -> None:
    assert json.loads(CharTokenizer("ba😀").to_json()) == {"kind": "char", "chars": "ab😀"}
    assert json.loads(ByteTokenizer().to_json()) == {"kind": "byte"}
    assert isinstance(from_json(ByteTokenizer().to_json(), "x"), ByteTokenizer)


@pytest.mark.parametrize(
    "text",
    [
        *("", "null", '"char"', '{"kind": "words"}', '{"kind": ["byte"]}', '{"kind": "char"}'),
        *('{"kind": "char", "chars": ""}', '{"kind": "char", "chars": 5}', '{"kind": "char", "chars": ["a", "b"]}'),
        *(
            '{"kind": "char", "chars": "ba"}',
            '{"kind": "char", "chars": "aab"}',
            r'{"kind": "char", "chars": "\ud800"}',
        ),
        *('{"kind": ' + "9" * 5000 + "}", '{"kind":' * 200_000),
    ],
    ids=lambda text: text[:40],
)
def test_other_json_is_not_a_tokenizer(text: str) -> None:
    with pytest.raises(UserError) as caught:
        from_json(text, "step-1/tokenizer.json")
    assert str(caught.value).startswith("step-1/tokenizer.json is not a tokenizer")
    assert str(caught.value).isprintable()
