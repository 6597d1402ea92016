"""A corpus: one or more texts, decoded in blocks so that they need not fit in memory."""

from __future__ import annotations

import codecs
import gzip
import hashlib
import io
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import IO

import numpy as np

from minigpt.errors import DownloadError, EncodingError, TextError, reason
from minigpt.text.tokenizer import code_points

BLOCK = 1 << 20
"""Bytes per read, and per hash of a fingerprint."""
PIECES = 100
"""Pieces of a generated text per block."""
ALTERNATIVES = {"utf-8": "cp1252", "cp1252": "latin-1"}
"""The encoding to suggest for a file that is not valid in the key's encoding. The default is UTF-8."""


@dataclass(frozen=True)
class Part:
    """One file or one generated text of a corpus."""

    label: str
    """The name in messages."""
    path: Path
    encoding: str = "utf-8"
    member: str = ""
    """The name of the text in the zip archive, if the file is an archive."""
    texts: Callable[[], Iterator[str]] | None = None
    """Generates the text if there is no file: pieces with `\\n` line ends, the same at each call."""

    def chunks(self, size: int) -> Iterator[bytes]:
        """Yield the decompressed bytes, at most `size` at a time."""
        try:
            with ExitStack() as stack:
                file: IO[bytes] | gzip.GzipFile
                if self.member:
                    archive = stack.enter_context(zipfile.ZipFile(self.path))
                    file = stack.enter_context(archive.open(self.member))
                elif self.path.suffix.lower() == ".gz":
                    file = stack.enter_context(gzip.open(self.path))
                else:
                    file = stack.enter_context(open(self.path, "rb", buffering=0))
                while chunk := file.read(size):
                    yield chunk
        except (EOFError, KeyError, zlib.error, gzip.BadGzipFile, zipfile.BadZipFile) as error:
            problem = f"the compressed file {self.label} is damaged or incomplete: {reason(error)}"
            raise (DownloadError(problem, self.path) if self.member else TextError(problem)) from error
        except OSError as error:
            raise TextError(f"cannot read {self.label}: {reason(error)}") from error

    def blocks(self) -> Iterator[str]:
        """Yield the decoded text in nonempty blocks, without a byte order mark. All line ends become `\\n`."""
        if self.texts:
            texts = filter(None, self.texts())
            yield from iter(lambda: "".join(islice(texts, PIECES)), "")
            return
        decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder(self.encoding)(), translate=True)
        is_start = self.encoding not in ("utf-16", "utf-32")  # these codecs remove the mark themselves
        offset, is_ascii = 0, True
        for chunk in chain(self.chunks(BLOCK), [b""]):
            try:
                block = decoder.decode(chunk, final=not chunk)
            except UnicodeError as error:
                # If all text so far is ASCII, do not call the file cut: it may have another encoding.
                is_cut = not chunk and not is_ascii
                raise self._encoding_error(error, offset + len(chunk), is_cut) from error
            offset, is_ascii = offset + len(chunk), is_ascii and block.isascii()
            if block and is_start:
                block, is_start = block.removeprefix("\ufeff"), False
            if block:
                yield block

    def _encoding_error(self, error: UnicodeError, end: int, is_cut: bool) -> EncodingError:
        problem = f"{self.label} is not valid {self.encoding}: {reason(error)}"
        if isinstance(error, UnicodeDecodeError):
            # `error.object` ends at offset `end` of the file. It may begin with bytes that the decoder buffered.
            offset, wrong = end - len(error.object) + error.start, error.object[error.start : error.end].hex()
            cut = ": the file ends in the middle of a character" if is_cut else ""
            problem = f"{self.label}: byte {offset} (0x{wrong}) is not valid {self.encoding}{cut}"
        return EncodingError(problem, "" if is_cut else ALTERNATIVES.get(self.encoding, "utf-8"))


@dataclass(frozen=True)
class Corpus:
    """A text of any size that can be read more than once."""

    name: str
    """A short name, such as `my.txt`, `3 texts` or `builtin:python`."""
    parts: tuple[Part, ...]
    notices: tuple[str, ...] = ()
    """Messages for the user, such as which files were skipped."""

    def blocks(self) -> Iterator[str]:
        """Yield the text in blocks. Each call reads the files again."""
        for part in self.parts:
            yield from part.blocks()


@dataclass(frozen=True)
class Scan:
    """The result of one pass over a corpus."""

    corpus: Corpus = field(compare=False)
    characters: int
    counts: dict[str, int]
    """The count of each distinct character, sorted by code point."""
    fingerprint: str
    """The text's `Fingerprint`, in hexadecimal."""


class Fingerprint:
    """The SHA-256 of a text's joined digests, which are the SHA-256 of each MiB of the text in UTF-8.

    The fingerprint does not depend on how the text is divided into files or blocks.
    """

    def __init__(self) -> None:
        self._digests, self._rest = bytearray(), bytearray()

    def read(self, corpus: Corpus) -> Iterator[str]:
        """Append a text while yielding it in blocks. Raise TextError if it has a lone surrogate."""
        for block in corpus.blocks():
            try:
                self.update(block.encode())
            except UnicodeEncodeError as error:
                problem = f"{corpus.name}: U+{ord(block[error.start]):04X} is a lone surrogate, not a character"
                raise TextError(problem) from error
            yield block

    def update(self, utf8: bytes) -> None:
        """Append a part of the text, of any length."""
        self._rest += utf8
        while len(self._rest) >= BLOCK:
            self._digests += hashlib.sha256(self._rest[:BLOCK]).digest()
            del self._rest[:BLOCK]

    def hexdigest(self) -> str:
        """Return the fingerprint of the text so far, in hexadecimal."""
        last = hashlib.sha256(self._rest).digest() if self._rest or not self._digests else b""
        return hashlib.sha256(self._digests + last).hexdigest()


def scan(corpus: Corpus, most: int | None = None) -> Scan:
    """Count the characters of a text and compute its fingerprint. Stop after the block with character `most` + 1."""
    counts, fingerprint, characters = np.zeros(sys.maxunicode + 1, dtype=np.int64), Fingerprint(), 0
    for block in fingerprint.read(corpus):
        block_counts = np.bincount(code_points(block))
        counts[: len(block_counts)] += block_counts
        characters += len(block)
        if most is not None and characters > most:
            break
    by_char = {chr(point): int(counts[point]) for point in np.flatnonzero(counts)}
    return Scan(corpus, characters, by_char, fingerprint.hexdigest())
