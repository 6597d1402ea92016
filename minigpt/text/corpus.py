"""A corpus: the text of one or more files, decoded in blocks so that it need not fit in memory."""

from __future__ import annotations

import codecs
import gzip
import hashlib
import io
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import IO, Any

import numpy as np

from minigpt.errors import DownloadError, EncodingError, TextError, reason
from minigpt.text.cache import recall, remember
from minigpt.text.tokenizer import code_points

BLOCK = 1 << 20
"""Bytes per read, and per hash of a fingerprint."""
INTERVAL = 1 << 28
"""Characters between two records of the progress: a second or two of work."""
Position = tuple[Any, ...]
"""The end of a block: offset in bytes, whether all text before is ASCII, and the decoder's state, ready for JSON. In a
corpus, the index of the part comes first."""
ALTERNATIVES = {"utf-8": "cp1252", "cp1252": "latin-1"}
"""The encoding to suggest for a file that is not valid in the key's encoding. The default is UTF-8."""


@dataclass(frozen=True)
class Part:
    """One file of a corpus."""

    label: str
    """The file's name in messages."""
    path: Path
    encoding: str = "utf-8"
    member: str = ""
    """The name of the text in the zip archive, if the file is one."""

    def chunks(self, size: int, start: int = 0) -> Iterator[bytes]:
        """Yield the decompressed bytes from byte `start` on, at most `size` at a time."""
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
                file.seek(start)
                while chunk := file.read(size):
                    yield chunk
        except (EOFError, KeyError, zlib.error, gzip.BadGzipFile, zipfile.BadZipFile) as error:
            problem = f"the compressed file {self.label} is damaged or incomplete: {reason(error)}"
            raise (DownloadError(problem, self.path) if self.member else TextError(problem)) from error
        except OSError as error:
            raise TextError(f"cannot read {self.label}: {reason(error)}") from error

    def blocks(self, position: Sequence[Any] = ()) -> Iterator[tuple[str, Position]]:
        """Yield the decoded text after `position` in nonempty blocks, each with its end.

        It has no byte order mark. All line ends become `\\n`.
        """
        decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder(self.encoding)(), translate=True)
        is_start = not position and self.encoding not in ("utf-16", "utf-32")  # these codecs remove the mark themselves
        offset, is_ascii, buffered, flags = position or (0, True, "", 0)
        if position:
            decoder.setstate((bytes.fromhex(buffered), flags))
        for chunk in chain(self.chunks(BLOCK, offset), [b""]):
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
                buffer, flags = decoder.getstate()
                yield block, (offset, is_ascii, buffer.hex(), flags)

    def _encoding_error(self, error: UnicodeError, end: int, is_cut: bool) -> EncodingError:
        suggestion = "" if is_cut else ALTERNATIVES.get(self.encoding, "utf-8")
        if not isinstance(error, UnicodeDecodeError):
            return EncodingError(f"{self.label} is not valid {self.encoding}: {reason(error)}", suggestion)
        # `error.object` ends at offset `end` of the file. It may begin with bytes that the decoder buffered.
        offset = end - len(error.object) + error.start
        wrong = error.object[error.start : error.end].hex()
        cut = ": the file ends in the middle of a character" if is_cut else ""
        problem = f"{self.label}: byte {offset} (0x{wrong}) is not valid {self.encoding}{cut}"
        return EncodingError(problem, suggestion)


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
        return (block for block, _ in self.blocks_from(()))

    def blocks_from(self, position: Sequence[Any]) -> Iterator[tuple[str, Position]]:
        """Yield the blocks after `position`, each with its end. The start of the text is ()."""
        first, *inside = position or (0,)
        for number, part in enumerate(self.parts[first:], first):
            for block, end in part.blocks(inside):
                yield block, (number, *end)
            inside = []


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
    """The SHA-256 of the digests of a text's blocks: the SHA-256 of each MiB of its UTF-8.

    It depends on the text only. The blocks are independent, so that several processes can share the work.
    """

    def __init__(self, digests: str = "", last: str = "") -> None:
        self._digests, self._last = bytearray.fromhex(digests), hashlib.sha256()
        self._parts, self._room = list[bytes](), BLOCK
        self.update(bytes.fromhex(last))

    def state(self) -> tuple[str, str]:
        """Return the arguments for a copy: the digests of full blocks, and the bytes of the last one."""
        return self._digests.hex(), b"".join(self._parts).hex()

    def update(self, utf8: bytes) -> None:
        """Append a part of the text, of any length."""
        while utf8:
            part, utf8 = utf8[: self._room], utf8[self._room :]
            self._last.update(part)
            self._parts.append(part)
            self._room -= len(part)
            if not self._room:
                self._digests += self._last.digest()
                self._last, self._parts, self._room = hashlib.sha256(), [], BLOCK

    def hexdigest(self) -> str:
        """Return the fingerprint of the text so far, in hexadecimal."""
        last = self._last.digest() if self._parts or not self._digests else b""
        return hashlib.sha256(self._digests + last).hexdigest()


class Progress:
    """One pass over a text. After a kill, another process continues it from the last record."""

    def __init__(self, corpus: Corpus, state: Sequence[object]) -> None:
        """Continue from the record about files in this state. If it is empty, there are no records."""
        self._corpus, self._state = corpus, state
        known: tuple[Position, tuple[str, ...], Any] = recall(state) or ((), (), None)
        self._position, fingerprint, self.results = known
        self.fingerprint = Fingerprint(*fingerprint)

    def blocks(self, results: Callable[[], object]) -> Iterator[str]:
        """Yield the rest of the text in blocks. Record the `results` of the blocks so far at each INTERVAL."""
        characters = 0
        for block, position in self._corpus.blocks_from(self._position):
            try:
                self.fingerprint.update(block.encode())
            except UnicodeEncodeError as error:
                problem = f"{self._corpus.name}: U+{ord(block[error.start]):04X} is a lone surrogate, not a character"
                raise TextError(problem) from error
            yield block
            characters += len(block)
            if characters >= INTERVAL:
                remember(self._state, (position, self.fingerprint.state(), results()))
                characters = 0


def scan(corpus: Corpus, state: Sequence[object] = ()) -> Scan:
    """Count the characters of a text and compute its fingerprint. `state` is that of `Progress`."""
    counts = np.zeros(sys.maxunicode + 1, dtype=np.int64)

    def by_char() -> dict[str, int]:
        return {chr(point): int(counts[point]) for point in np.flatnonzero(counts)}

    progress = Progress(corpus, state)
    for char, count in (progress.results or {}).items():
        counts[ord(char)] = count
    for block in progress.blocks(by_char):
        found = np.bincount(code_points(block))
        counts[: len(found)] += found
    return Scan(corpus, int(counts.sum()), by_char(), progress.fingerprint.hexdigest())
