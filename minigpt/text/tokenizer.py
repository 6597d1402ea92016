"""Text to token ids and back: one token a character, or one a byte. Stored as JSON beside the weights."""

import codecs
import difflib
import json
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from minigpt.errors import UnknownCharacterError, UserError

Unknown = Literal["error", "skip", "replace"]
Ids = npt.NDArray[np.unsignedinteger[Any]]

_TYPEWRITER = str.maketrans("‘’‚‛′“”„‟″‐‑‒–—―−", "'" * 5 + '"' * 5 + "-" * 7)


def smallest_dtype(vocab_size: int) -> type[np.unsignedinteger[Any]]:
    """Return the smallest unsigned integer type that holds every id below `vocab_size`."""
    return next(kind for kind in (np.uint8, np.uint16, np.uint32) if vocab_size - 1 <= np.iinfo(kind).max)


def code_points(text: str) -> npt.NDArray[np.uint32]:
    """Return the Unicode code points of `text`, shape (len(text),)."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)


class CharTokenizer:
    """One token for each distinct character, numbered in the order of their code points."""

    def __init__(self, chars: Iterable[str]) -> None:
        points = np.unique(code_points("".join(chars)))
        self.chars = points.astype("<u4").tobytes().decode("utf-32-le", "surrogatepass")
        self.vocab_size = len(self.chars)
        self.dtype = smallest_dtype(max(1, self.vocab_size))
        # Indexed by code point; a character outside the vocabulary gets a number no id has.
        self._unknown = self.vocab_size
        table_type = smallest_dtype(self.vocab_size + 1)
        self._table = np.full(int(points.max(initial=0)) + 2, self._unknown, dtype=table_type)
        self._table[points] = np.arange(self.vocab_size)
        self._ascii_table = bytes(
            self._table[i] if i < len(self._table) - 1 and self.vocab_size <= 255 else 255 for i in range(256)
        )

    @cached_property
    def _known(self) -> frozenset[str]:
        return frozenset(self.chars)

    def encode(self, text: str, unknown: Unknown = "error", offset: int = 0) -> Ids:
        """Return the ids of `text`, shape (characters,), which begins `offset` characters into the whole.

        Raises UnknownCharacterError, naming its position in the whole, for a character outside the vocabulary, unless
        `unknown` is "skip" (leave it out) or "replace" (take its nearest relative).
        """
        if self.vocab_size <= 255 and text.isascii():
            ids: Ids = np.frombuffer(text.encode("ascii").translate(self._ascii_table), dtype=np.uint8)
            missing = (ids >= self.vocab_size).any()
        else:
            ids = self._table.take(code_points(text), mode="clip")
            missing = (ids == self._unknown).any()
        if not missing:
            return ids.astype(self.dtype, copy=False)
        if unknown == "error":
            raise UnknownCharacterError(self._describe_unknown(text, offset))
        stand_in: dict[str, str | int | None] = {
            c: "" if unknown == "skip" else self.relatives(c)[0] for c in set(text) - self._known
        }
        return self.encode(text.translate(str.maketrans(stand_in)))

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of `ids`."""
        return "".join(self.chars[int(i)] for i in ids)

    def decoder(self) -> Callable[[int], str]:
        """Return a function from an id to its character."""
        return lambda i: self.chars[i]

    def characters(self, ids: Ids) -> int:
        """Return how many characters `ids` stand for: as many as there are ids."""
        return len(ids)

    def relatives(self, char: str, count: int = 3) -> list[str]:
        """Return the characters of the vocabulary nearest to `char`, best first, at least one.

        Nearest is: the same letter in another case or without its accents, or the quote or dash on a typewriter,
        then the likeliest Unicode name ("FULL STOP" and "IDEOGRAPHIC FULL STOP"), then the closest code point.
        """
        plain = unicodedata.normalize("NFKD", char.translate(_TYPEWRITER))
        same = [c for c in (char.swapcase(), char.lower(), plain[:1], plain[:1].swapcase()) if c in self._known]
        near = sorted(self.chars, key=lambda c: abs(ord(c) - ord(char)))
        # Comparing names is slow: in a large vocabulary only the neighbours are worth it.
        names = {unicodedata.name(c, ""): c for c in near[:500]}
        alike = difflib.get_close_matches(unicodedata.name(char, "?"), names, n=count, cutoff=0.6)
        return list(dict.fromkeys([*same, *(names[name] for name in alike), *near]))[:count]

    def _describe_unknown(self, text: str, offset: int) -> str:
        missing = list(dict.fromkeys(c for c in text if c not in self._known))
        parts = []
        for char in missing[:5]:
            nearest = " ".join(repr(c) for c in self.relatives(char))
            position = offset + text.index(char) + 1
            parts.append(f"{describe(char)} at position {position} (nearest known: {nearest})")
        more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        return f"the model does not know {', '.join(parts)}{more}"

    def to_json(self) -> str:
        """Return the JSON that `from_json` reads back."""
        return json.dumps({"kind": "char", "chars": self.chars})


class ByteTokenizer:
    """The 256 bytes of UTF-8: any text, at one to four tokens a character."""

    vocab_size = 256
    dtype = np.uint8

    def encode(self, text: str, unknown: Unknown = "error", offset: int = 0) -> Ids:
        """Return the bytes of `text`, shape (bytes,); only half a character (a lone surrogate) has none."""
        on_error = {"error": "strict", "skip": "ignore", "replace": "replace"}[unknown]
        try:
            return np.frombuffer(text.encode("utf-8", on_error), dtype=np.uint8)
        except UnicodeEncodeError as error:
            where = f"{describe(text[error.start])} at position {offset + error.start + 1}"
            raise UserError(f"the text is not valid Unicode: {where} is half a character") from error

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of `ids`; bytes that are no UTF-8 become U+FFFD."""
        return bytes(int(i) for i in ids).decode("utf-8", "replace")

    def decoder(self) -> Callable[[int], str]:
        """Return a function from the next byte to the characters that it completes."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        return lambda i: decoder.decode(bytes([i]))

    def characters(self, ids: Ids) -> int:
        """Return how many characters begin in `ids`: all bytes but the continuation bytes."""
        return int(np.count_nonzero((np.asarray(ids) & 0xC0) != 0x80))

    def to_json(self) -> str:
        """Return the JSON that `from_json` reads back."""
        return json.dumps({"kind": "byte"})


Tokenizer = CharTokenizer | ByteTokenizer
"""Either kind: both offer vocab_size, dtype, encode, decode, decoder, characters and to_json."""


def describe(char: str) -> str:
    """Return a character as text for people: itself where it shows, its code point and its name."""
    name = unicodedata.name(char, "no name")
    return f"{char!r} (U+{ord(char):04X} {name})"


def from_json(text: str, origin: str) -> Tokenizer:
    """Read a tokenizer back. Raises UserError, naming `origin`, when `text` is not one."""
    try:
        stored = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{origin} is not a tokenizer: {error}") from error
    match stored:
        case {"kind": "byte"}:
            return ByteTokenizer()
        case {"kind": "char", "chars": str(chars)} if _is_vocabulary(chars):
            return CharTokenizer(chars)
    raise UserError(f"{origin} is not a tokenizer of this version of minigpt")


def _is_vocabulary(chars: str) -> bool:
    """Return whether `chars` are distinct characters in order, without halves of one (lone surrogates)."""
    points = code_points(chars).astype(np.int64)
    is_half = (points >= 0xD800) & (points <= 0xDFFF)
    return len(points) > 0 and bool((np.diff(points) > 0).all()) and not is_half.any()


def build(kind: str, chars: Sequence[str]) -> Tokenizer:
    """Return the tokenizer named by `data.tokenizer` for a text made of `chars`."""
    return ByteTokenizer() if kind == "byte" else CharTokenizer(chars)
