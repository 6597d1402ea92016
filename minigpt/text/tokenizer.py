"""Tokenizers: text to token ids and back."""

import codecs
import json
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, Literal, Protocol, get_args

import numpy as np
import numpy.typing as npt

from minigpt.errors import CheckpointError, UnknownCharacterError

Unknown = Literal["error", "skip", "replace"]
"""How to handle characters outside the vocabulary."""
Ids = npt.NDArray[np.integer[Any]]

MOST_NAMED = 8
"""Maximum number of unknown characters that an error names."""
_ASCII_FORMS = str.maketrans("‘’‚‛′“”„‟″‐‑‒–—―−", "'" * 5 + '"' * 5 + "-" * 7)
"""Map typographic quotes and dashes to ASCII."""


class Tokenizer(Protocol):
    """What minigpt needs of a tokenizer. A token stands for one or more characters, or for part of one, in UTF-8."""

    kind: ClassVar[str]
    """The tokenizer's name in `data.tokenizer` and in tokenizer.json."""
    unit: ClassVar[str]
    """What a token is, for messages."""
    vocab_size: int
    dtype: np.dtype[Any]
    """A small type that holds every id."""

    def encode(self, text: str, unknown: Unknown = "error", dtype: npt.DTypeLike = np.int64) -> Ids:
        """Return the ids of `text`, (T,). For `unknown`, see `CharTokenizer.encode`."""

    def encode_blocks(self, blocks: Iterable[str], unknown: Unknown) -> Iterator[Ids]:
        """Yield ids that together are the ids of the text of all blocks.

        A tokenizer whose tokens span characters must keep the end of a block until it has read the next block.
        """
        return (self.encode(block, unknown, self.dtype) for block in blocks)

    def decode(self, ids: Sequence[int] | Ids) -> str:
        """Return the text of `ids`. Bytes that are not UTF-8 become U+FFFD."""

    def spell(self, i: int) -> bytes:
        """Return the UTF-8 of a token."""

    def decoder(self) -> Callable[[int], str]:
        """Return a function that maps the next token to the characters that it completes."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        return lambda i: decoder.decode(self.spell(i))

    def characters(self, ids: Ids) -> int:
        """Return the number of characters that begin in `ids`."""

    def to_json(self) -> str:
        """Return JSON for `from_json`."""


class CharTokenizer(Tokenizer):
    """One token per distinct character. Ids follow the order of code points."""

    kind, unit = "char", "character"

    def __init__(self, chars: Iterable[str]) -> None:
        points = np.unique(code_points("".join(chars)))
        self.chars = points.astype("<u4").tobytes().decode("utf-32-le", "surrogatepass")
        self.vocab_size = len(self.chars)
        self.dtype = np.min_scalar_type(self.vocab_size)
        # Ids by code point. The last entry covers all larger code points, which are unknown.
        self._table = np.full(int(points.max(initial=0)) + 2, self.vocab_size, dtype=self.dtype)
        self._table[points] = np.arange(self.vocab_size)

    def encode(self, text: str, unknown: Unknown = "error", dtype: npt.DTypeLike = np.int64) -> Ids:
        """Return the ids of `text`, (T,).

        Args:
            text: The text, or part of a text.
            unknown: How to handle characters outside the vocabulary: raise UnknownCharacterError, skip them, or
                replace each with the nearest character in the vocabulary.
            dtype: The type of the ids, such as `self.dtype`.
        """
        _check_choice(unknown)
        ids: Ids = self._table.take(code_points(text), mode="clip").astype(dtype, copy=False)
        if not (ids == self.vocab_size).any():
            return ids
        missing = [char for char in dict.fromkeys(text) if char not in self.chars]
        if unknown == "error":
            described = _describe(missing[0]) if len(missing) == 1 else ", ".join(map(repr, missing[:MOST_NAMED]))
            others = f", and {len(missing) - MOST_NAMED} more" if len(missing) > MOST_NAMED else ""
            raise UnknownCharacterError(f"outside the vocabulary: {described}{others}")
        replacements = {ord(char): self.nearest(char) if unknown == "replace" else "" for char in missing}
        return self.encode(text.translate(replacements), dtype=dtype)

    def decode(self, ids: Sequence[int] | Ids) -> str:
        points = code_points(self.chars)[np.asarray(ids, np.intp)]
        return points.tobytes().decode("ascii" if points.dtype == np.uint8 else "utf-32-le")

    def spell(self, i: int) -> bytes:
        return self.chars[i].encode()

    def characters(self, ids: Ids) -> int:
        return len(ids)

    def nearest(self, char: str) -> str:
        """Return the most similar known character: other case, base letter or ASCII form, or the nearest code point."""
        plain = unicodedata.normalize("NFKD", char.translate(_ASCII_FORMS))[:1]
        similar = (c for c in (char.swapcase(), plain, plain.swapcase()) if len(c) == 1 and c in self.chars)
        return next(similar, "") or min(self.chars, key=lambda c: abs(ord(c) - ord(char)))

    def to_json(self) -> str:
        return json.dumps({"kind": self.kind, "chars": self.chars})


class ByteTokenizer(Tokenizer):
    """One token per UTF-8 byte. Each character takes one to four tokens."""

    kind, unit = "byte", "byte"
    vocab_size, dtype = 256, np.dtype(np.uint8)

    def encode(self, text: str, unknown: Unknown = "error", dtype: npt.DTypeLike = np.int64) -> Ids:
        """Return the bytes of `text`, (T,). Only lone surrogates are outside the vocabulary."""
        _check_choice(unknown)
        handler = {"error": "strict", "skip": "ignore", "replace": "replace"}[unknown]
        try:
            return np.frombuffer(text.encode("utf-8", handler), dtype=np.uint8).astype(dtype, copy=False)
        except UnicodeEncodeError as error:
            raise UnknownCharacterError(f"outside the vocabulary: {_describe(text[error.start])}") from error

    def decode(self, ids: Sequence[int] | Ids) -> str:
        return np.asarray(ids, np.uint8).tobytes().decode("utf-8", "replace")

    def spell(self, i: int) -> bytes:
        return bytes([i])

    def characters(self, ids: Ids) -> int:
        ids, count = np.asarray(ids), 0
        for start in range(0, len(ids), 1 << 20):  # in parts, to save memory
            count += int(np.count_nonzero((ids[start : start + (1 << 20)] & 0xC0) != 0x80))
        return count

    def to_json(self) -> str:
        return json.dumps({"kind": self.kind})


def make_tokenizer(kind: str, chars: Iterable[str]) -> Tokenizer:
    """Return a "char" or "byte" tokenizer for a text with these distinct characters."""
    return ByteTokenizer() if kind == "byte" else CharTokenizer(chars)


def from_json(text: str, origin: str) -> Tokenizer:
    """Parse a tokenizer. Raise a CheckpointError that names `origin` if `text` is not one."""
    try:
        stored = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{origin} is not a tokenizer: {error}") from error
    match stored:
        case {"kind": "byte"}:
            return ByteTokenizer()
        case {"kind": "char", "chars": str(chars)} if _is_vocabulary(chars):
            return CharTokenizer(chars)
    raise CheckpointError(f"{origin} is not a tokenizer that this version of minigpt supports")


def _check_choice(unknown: str) -> None:
    if unknown not in get_args(Unknown):
        raise ValueError(f"unknown must be one of {', '.join(get_args(Unknown))}, not {unknown!r}")


def _is_vocabulary(chars: str) -> bool:
    """Return whether `chars` is not empty and its characters are distinct, sorted and not lone surrogates."""
    points = code_points(chars).astype(np.int64)
    is_surrogate = (points >= 0xD800) & (points < 0xE000)
    return bool(chars) and bool((np.diff(points) > 0).all()) and not is_surrogate.any()


def _describe(char: str) -> str:
    return f"{char!r} (U+{ord(char):04X} {unicodedata.name(char, 'no name')})"


def unix_newlines(text: str) -> str:
    """Return `text` with all line ends as `\\n`, as in every text that minigpt reads."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def code_points(text: str) -> Ids:
    """Return the code point of each character (N,), as bytes if all are ASCII."""
    if text.isascii():
        return np.frombuffer(text.encode(), dtype=np.uint8)
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
