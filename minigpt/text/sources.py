"""Where text comes from: files, folders, globs, standard input, `builtin:NAME` and `download:NAME`.

A corpus is an ordered list of things to open. Its text is read in a stream, block by block, as often as
wanted, and never held whole. What the text is turned into (ids, splits, batches) is `data.py`'s business.
"""

from __future__ import annotations

import atexit
import codecs
import encodings.aliases
import errno
import gzip
import hashlib
import importlib
import io
import os
import stat
import sys
import sysconfig
import tokenize
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, takewhile
from pathlib import Path
from typing import BinaryIO, Literal
from uuid import uuid4

import numpy as np

from minigpt.errors import UserError, did_you_mean, escape, reason
from minigpt.files import remove_abandoned
from minigpt.paths import cache_folder
from minigpt.storage.runs import is_run
from minigpt.text.download import download, downloads

BLOCK = 1 << 20
"""Bytes per read, and the most characters in a block."""
HEAD = 8 << 10
"""Bytes in which a NUL tells a binary file."""
PAGE = b'<meta name="generator" content="minigpt '
"""In those of a page that `minigpt inspect` wrote."""

BUILTINS: dict[str, str] = {
    "python": "source code of this Python's standard library, without tests (about 11 MB)",
    "pydoc": "the language reference behind Python's help() (about 0.5 MB)",
}


@dataclass(frozen=True)
class Part:
    """One thing to open: where it is, how to open it, how to decode it."""

    label: str
    """What errors call it."""
    path: Path
    encoding: str
    kind: Literal["plain", "gz", "zip", "pydoc"] = "plain"
    member: str = ""
    """The file to read inside a zip."""
    unix_newlines: bool = False
    """Turn each `\\r\\n` and `\\r` into `\\n`; without it line ends stay as they are."""


@dataclass(frozen=True)
class Corpus:
    """A text that may be larger than memory."""

    name: str
    """Short, for people: `my.txt`, `3 files`, `builtin:python`."""
    parts: tuple[Part, ...]
    """What to read, in order."""
    notices: tuple[str, ...] = ()
    """One-line remarks for the user."""

    def blocks(self) -> Iterator[str]:
        """The whole text, at most 1 Mi characters at a time; call it as often as needed.

        UserError where the text cannot be read or decoded.
        """
        held: list[str] = []
        length = 0
        for piece in chain.from_iterable(_decoded(part, len(self.parts) > 1) for part in self.parts):
            if held and length + len(piece) > BLOCK:
                yield "".join(held)
                held, length = [], 0
            held.append(piece)
            length += len(piece)
        if held:
            yield "".join(held)

    def stamps(self) -> tuple[tuple[int, int] | None, ...]:
        """How large the file of each part is and when it was written last, in nanoseconds: others tell of a change."""
        return tuple(map(_stamp, self.parts))


def _stamp(part: Part) -> tuple[int, int] | None:
    try:
        found = part.path.stat()
    except OSError:  # it is gone, or is no file, as builtin:pydoc
        return None
    return found.st_size, found.st_mtime_ns  # not st_ino, which some disks over a network number anew


@dataclass(frozen=True)
class Scan:
    """What one pass over a corpus tells."""

    characters: int
    counts: dict[str, int]
    """Each distinct character, in code point order, and how often it occurs."""
    fingerprint: str
    """sha256 (hexadecimal) of the whole text in UTF-8."""
    stamps: tuple[tuple[int, int] | None, ...]
    """The corpus's `stamps()` when the pass began."""


def scan(corpus: Corpus) -> Scan:
    """Count and fingerprint the text in one streaming pass. UserError as for `Corpus.blocks`."""
    counts = np.zeros(sys.maxunicode + 1, dtype=np.int64)
    digest, stamps = hashlib.sha256(), corpus.stamps()
    for block in corpus.blocks():
        try:
            text = block.encode("utf-8")
        except UnicodeEncodeError as error:
            raise UserError(f"{corpus.name}: U+{ord(block[error.start]):04X} is half a character") from error
        digest.update(text)
        if block.isascii():
            found = np.bincount(np.frombuffer(text, dtype=np.uint8))
        else:
            found = np.bincount(np.frombuffer(block.encode("utf-32-le"), dtype="<u4"))
        counts[: len(found)] += found
    present = np.flatnonzero(counts)
    return Scan(
        characters=int(counts.sum()),
        counts={chr(point): int(counts[point]) for point in present},
        fingerprint=digest.hexdigest(),
        stamps=stamps,
    )


@dataclass(frozen=True)
class _Found:
    """What one source entry stands for."""

    name: str
    parts: Sequence[Part]
    notices: Sequence[str] = ()


def open_corpus(source: str | Sequence[str], encoding: str = "utf-8") -> Corpus:
    """The corpus that one entry names, or several joined with nothing in between.

    An entry is a file, a folder, a glob, `-` for standard input, `builtin:NAME` or `download:NAME`;
    `encoding` applies to all but the last two. Each file is opened for a look at its start, standard input
    is read to its end, a download is fetched. UserError if an entry is missing, unreadable or binary, or if
    there is no text in any of them.
    """
    entries = [source] if isinstance(source, str) else list(source)
    if not entries:
        raise UserError("no text was named")
    codec = _checked_encoding(encoding)
    found = [_find(entry, codec) for entry in entries]
    notices = tuple(notice for one in found for notice in one.notices)
    found = [one for one in found if one.parts]
    parts = tuple(part for one in found for part in one.parts)
    if not parts:
        raise UserError(f"there is no text ({'; '.join(notices)})")
    if len(found) == 1:
        name = found[0].name
    else:
        name = f"{len(found)} files" if len(parts) == len(found) else f"{len(found)} sources"
    corpus = Corpus(name, parts, notices)
    if next(corpus.blocks(), None) is None:
        raise UserError(f"{name}: the text is empty")
    return corpus


def _checked_encoding(encoding: str) -> str:
    """Python's own name for the encoding; UserError if it is not one for text."""
    try:
        codec = codecs.lookup(encoding)
    except (LookupError, ValueError) as error:
        known = (known.replace("_", "-") for pair in encodings.aliases.aliases.items() for known in pair)
        near = did_you_mean(encoding.lower().replace("_", "-"), known)
        raise UserError(f"unknown encoding {encoding!r}{near}") from error
    if not getattr(codec, "_is_text_encoding", True) or codec.incrementaldecoder is None:
        raise UserError(f"{encoding!r} is not an encoding of text; utf-8, latin-1 and cp1252 are")
    return "utf-8" if codec.name == "utf-8-sig" else codec.name


def _find(entry: str, encoding: str) -> _Found:
    scheme, _, name = entry.partition(":")
    if scheme == "builtin":
        return _builtin(name)
    if scheme == "download":
        return _downloaded(name)
    if entry == "-":
        return _standard_input(encoding)
    if not entry:
        raise UserError("a source of text has an empty name")
    path, mode = _located(entry)
    if mode is None and _is_glob(entry):
        return _matched(entry, path, encoding)
    if mode is None:
        raise UserError(f"{escape(entry)}: no such file or folder{_near(entry, path)}")
    if stat.S_ISDIR(mode):
        return _inside(path, encoding)
    if stat.S_ISFIFO(mode) or (stat.S_ISREG(mode) and entry.startswith(STREAMS)):
        return _pipe(path, encoding)
    if not stat.S_ISREG(mode):
        raise UserError(f"{escape(path)}: is neither a file nor a folder")
    return _Found(escape(path.name), [_direct(_file(path, encoding))])


def _located(entry: str) -> tuple[Path, int | None]:
    """The path that an entry names, as it stands or else with `~` expanded, and its file mode."""
    path = Path(entry)
    mode = _mode(path)
    if mode is None:
        path = Path(os.path.expanduser(entry))
        mode = _mode(path)
    return path, mode


def _mode(path: Path) -> int | None:
    """The file mode, links followed, or None if nothing is there; UserError if the system will not tell."""
    try:
        return path.stat().st_mode
    except OSError as error:
        # Windows answers EINVAL for the wildcards of a glob.
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EINVAL):
            return None
        raise _unreadable(escape(path), error) from error
    except ValueError as error:
        raise _unreadable(escape(path), error) from error


def _unreadable(label: str, error: Exception) -> UserError:
    return UserError(f"{label}: cannot be read ({reason(error)})")


def _near(entry: str, path: Path) -> str:
    """A hint at a file with a similar name, or at the prefix that was left out."""
    try:
        beside = [file.name for file in path.parent.iterdir()]
    except OSError:
        beside = []  # the folder is missing too, or closed to us: the error at hand says enough
    named = [f"builtin:{name}" for name in BUILTINS] + [f"download:{name}" for name in downloads()]
    for candidate in named:
        if entry == candidate.partition(":")[2]:
            return f"; did you mean {candidate}?"
    return did_you_mean(path.name, beside) or did_you_mean(entry, named)


def _file(path: Path, encoding: str) -> Part:
    return Part(escape(path), path, encoding, kind="gz" if path.suffix.lower() == ".gz" else "plain")


def _direct(part: Part) -> Part:
    """The part, which the user named itself; UserError if it is binary."""
    head = _head(part)
    if _is_binary(head, part.encoding):
        raise UserError(f"{part.label}: is a binary file, not text{_looks_like(head, part.encoding)}")
    return part


def _looks_like(head: bytes, encoding: str, is_one_of_many: bool = False) -> str:
    """A hint at the encoding that a byte order mark names, where that is not the one in use."""
    marks = (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE), (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
    found = next((name for name, mark in zip(("utf-32", "utf-16"), marks, strict=True) if head.startswith(mark)), None)
    if not found or encoding.startswith(found):
        return ""
    if is_one_of_many:
        return f"; one looks like {found.upper()}: make it UTF-8"
    return f"; it looks like {found.upper()}, {_how(found)}"


def _is_binary(head: bytes, encoding: str) -> bool:
    if encoding.startswith(("utf-16", "utf-32")):
        return "\0" in head.decode(encoding, errors="replace")
    return b"\0" in head


def _left_out(what: str, where: str, paths: Sequence[Path]) -> list[str]:
    """A notice of what a folder or glob holds and is no part of the text, where there is such."""
    many = f"{len(paths)} {what}s" if len(paths) > 1 else f"1 {what}"
    return [f"left out {many} {where} (first: {escape(paths[0].name)})"] if paths else []


def _texts(paths: Iterable[Path], where: str, encoding: str, notices: list[str]) -> _Found:
    """The text files among `paths`, each real file once, in order; notices tell of what is left out.

    That is binary files, and pages of `minigpt inspect`, which would else be read by the next run on their folder.
    """
    by_file: dict[str, Path] = {}
    for path in sorted(paths, key=lambda path: (len(path.parts), path.as_posix())):
        by_file.setdefault(os.path.realpath(path), path)
    parts: list[Part] = []
    binary: list[Part] = []
    pages: list[Path] = []
    hint = ""
    for path in sorted(by_file.values(), key=Path.as_posix):
        part = _file(path, encoding)
        head = _head(part)
        if PAGE in head:
            pages.append(path)
            continue
        is_binary = _is_binary(head, encoding)
        (binary if is_binary else parts).append(part)
        hint = hint or (_looks_like(head, encoding, is_one_of_many=True) if is_binary else "")
    if binary:
        many = f"{len(binary)} binary files" if len(binary) > 1 else "1 binary file"
        notices = [*notices, f"skipped {many} in {where} (first: {escape(binary[0].path.name)}{hint})"]
    notices = [*notices, *_left_out("page", f"of minigpt in {where}", pages)]
    if (binary or pages) and not parts:
        raise UserError(f"{where}: holds no text ({'; '.join(notices)})")
    return _Found(where, parts, notices)


def _is_glob(name: str) -> bool:
    return any(wildcard in name for wildcard in "*?[")


def _matched(pattern: str, path: Path, encoding: str) -> _Found:
    """The files that a glob matches."""
    fixed = list(takewhile(lambda part: not _is_glob(part), path.parts))
    base, moving = Path(*fixed), list(path.parts[len(fixed) :])
    if moving[-1] == "**":
        moving.append("*")  # "**" alone stands for folders
    try:
        # Unlike glob.glob, this does not follow links below "**", where two in a circle would never end.
        files = [file for file in base.glob("/".join(moving)) if file.is_file()]
    except (ValueError, OSError) as error:
        raise UserError(f"{escape(pattern)}: cannot be matched ({reason(error)})") from error
    if not any(part.startswith(".") for part in moving):
        files = [f for f in files if not any(part.startswith(".") for part in f.relative_to(base).parts)]
    runs = sorted({run for file in files for run in file.parents if base in run.parents and is_run(run)})
    files = [file for file in files if not set(runs) & set(file.parents)]
    if not (files or runs):
        raise UserError(f"{escape(pattern)}: matches no file")
    return _texts(files, escape(pattern), encoding, _left_out("run", f"of minigpt in {escape(pattern)}", runs))


def _inside(folder: Path, encoding: str) -> _Found:
    """The files below a folder, hidden ones and those of runs excepted.

    A link is followed if it stays inside, and only once, so that links in a circle end.
    """
    where = escape(folder).rstrip("/\\") + "/"
    top = os.path.realpath(folder)
    followed: set[str] = set()
    outside: list[Path] = []

    def wanted(path: Path) -> bool:
        if path.name.startswith("."):
            return False
        if not path.is_symlink():
            return True
        target = os.path.realpath(path)
        is_inside, is_new = Path(top) in Path(target).parents, target not in followed
        followed.add(target)
        if not is_inside and os.path.exists(target) and Path(target) not in (Path(top), *Path(top).parents):
            outside.append(path)
        return is_inside and is_new

    def stop(error: OSError) -> None:
        raise _unreadable(escape(error.filename), error) from error

    files: list[Path] = []
    runs: list[Path] = []
    for here, folders, names in os.walk(folder, followlinks=True, onerror=stop):
        # Sorted because the walk goes down in this order, and a link counts only where it is met first.
        folders[:] = sorted(name for name in folders if wanted(Path(here, name)))
        runs += (Path(here, name) for name in folders if is_run(Path(here, name)))
        folders[:] = [name for name in folders if Path(here, name) not in runs]
        paths = (Path(here, name) for name in sorted(names))
        files += (path for path in paths if wanted(path) and path.is_file())
    notices = _left_out("run", f"of minigpt in {where}", runs)
    notices += _left_out("link", f"in {where} leading out of it, whose files can be named themselves", outside)
    if not (files or notices):
        raise UserError(f"{where}: holds no text")
    return _texts(files, where, encoding, notices)


STREAMS = ("/dev/stdin", "/dev/fd/", "/proc/self/fd/")
"""How paths begin that are this process's own streams; shells name pipes so."""


def is_read_once(entry: str) -> bool:
    """Return whether a source is a stream that cannot be opened again: standard input, or a pipe."""
    return entry == "-" or entry.startswith(STREAMS) or stat.S_ISFIFO(_located(entry)[1] or 0)


def _standard_input(encoding: str) -> _Found:
    if sys.stdin is None:
        raise UserError("standard input is closed; send a text into it, e.g. minigpt train - < my.txt")
    if sys.stdin.isatty():
        raise UserError("standard input is a terminal; send a text into it, e.g. minigpt train - < my.txt")
    return _spooled(sys.stdin.buffer, "standard input", encoding)


def _pipe(path: Path, encoding: str) -> _Found:
    """A named pipe, such as a shell makes for `<(command)`, or a stream of this process."""
    try:
        with path.open("rb") as stream:
            return _spooled(stream, escape(path), encoding)
    except OSError as error:
        raise _unreadable(escape(path), error) from error


def _spooled(stream: BinaryIO, label: str, encoding: str) -> _Found:
    """A stream that can be read only once, copied to a file that is deleted when the process ends."""
    path = cache_folder() / f"spool-{uuid4().hex}.txt"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_abandoned(path.parent, "spool-*.txt")
        with path.open("xb") as file:
            atexit.register(path.unlink, missing_ok=True)
            while chunk := stream.read(BLOCK):
                file.write(chunk)
    except OSError as error:
        raise UserError(f"{label}: cannot be kept in {escape(path)} ({reason(error)})") from error
    return _Found(label, [_direct(Part(label, path, encoding))])


def _downloaded(name: str) -> _Found:
    path = download(name)
    item = downloads()[name]
    label = f"download:{name}"
    encoding = _checked_encoding(item.encoding)
    return _Found(label, [Part(label, path, encoding, "zip" if item.member else "plain", item.member)])


def _builtin(name: str) -> _Found:
    if name == "python":
        return _Found("builtin:python", _python_sources())
    if name == "pydoc":
        label = "builtin:pydoc"
        return _Found(label, [Part(label, Path("pydoc_data/topics.py"), "utf-8", kind="pydoc")])
    known = ", ".join(BUILTINS)
    raise UserError(f"there is no builtin text named {name!r}{did_you_mean(name, BUILTINS)} (known: {known})")


def _python_sources() -> list[Part]:
    """The standard library's modules in the order of their paths, each with its declared encoding."""
    root = Path(sysconfig.get_path("stdlib"))
    parts: list[Part] = []
    for path in sorted(_library_files(root), key=lambda path: path.relative_to(root).as_posix()):
        try:
            source = path.read_bytes()
            encoding, _ = tokenize.detect_encoding(io.BytesIO(source).readline)
            source.decode(encoding)
        except (SyntaxError, UnicodeDecodeError):
            continue  # written to be undecodable, as test material is: no loss to the text
        except OSError as error:
            raise _unreadable(escape(path), error) from error
        parts.append(Part(escape(path), path, _checked_encoding(encoding), unix_newlines=True))
    if not parts:
        raise UserError(f"builtin:python: this Python has no source of its library in {escape(root)}")
    return parts


def _library_files(root: Path) -> Iterator[Path]:
    """The `.py` files of Python's own text, in no order.

    Left out: tests, what was installed later, and what the build wrote, which differs between machines.
    """
    apart = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__", "lib-dynload"}
    prefixes = ("test_", "_sysconfigdata", "sitecustomize", "usercustomize")
    for here, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in apart and not name.startswith("config-")]
        yield from (Path(here, n) for n in names if n.endswith(".py") and not n.startswith(prefixes))


def _raw(part: Part, size: int = BLOCK) -> Iterator[bytes]:
    """The part's bytes, unpacked, `size` at a time."""
    try:
        if part.kind == "zip":
            with zipfile.ZipFile(part.path) as archive, archive.open(part.member) as member:
                yield from iter(lambda: member.read(size), b"")
        elif part.kind == "gz":
            with gzip.open(part.path, "rb") as unpacked:
                yield from iter(lambda: unpacked.read(size), b"")
        else:
            with part.path.open("rb", buffering=0) as file:
                yield from iter(lambda: file.read(size), b"")
    except (EOFError, KeyError, zlib.error, gzip.BadGzipFile, zipfile.BadZipFile) as error:
        advice = f"; delete {escape(part.path)} to fetch it again" if part.kind == "zip" else ""
        what = f"the compressed file is damaged or cut short ({reason(error)}){advice}"
        raise UserError(f"{part.label}: {what}") from error
    except OSError as error:
        raise _unreadable(part.label, error) from error


def _head(part: Part) -> bytes:
    return next(_raw(part, HEAD), b"")


def _decoded(part: Part, is_one_of_many: bool) -> Iterator[str]:
    """The part's text in pieces of at most BLOCK characters, none empty, without the byte order mark."""
    if part.kind == "pydoc":
        yield from _pydoc_topics()
        return
    codec = codecs.getincrementaldecoder(part.encoding)()
    decoder = io.IncrementalNewlineDecoder(codec, translate=True) if part.unix_newlines else codec
    done = 0
    # These two codecs take the mark away themselves; what follows it is text.
    at_start = part.encoding not in ("utf-16", "utf-32")
    for chunk in chain(_raw(part), [b""]):
        try:
            piece = decoder.decode(chunk, final=not chunk)
        except UnicodeError as error:
            raise _undecodable(part, error, done, len(chunk), is_one_of_many) from error
        done += len(chunk)
        if piece and at_start:
            piece, at_start = piece.removeprefix("\ufeff"), False
        if piece:
            yield piece


def _how(encoding: str) -> str:
    """Return how commands are told an encoding."""
    return f"--encoding {encoding} (train, bench train: --set data.encoding={encoding})"


def _undecodable(part: Part, error: UnicodeError, done: int, size: int, is_one_of_many: bool) -> UserError:
    """The error for bytes that do not decode: the `size` bytes after the first `done` of the file."""
    if part.encoding == "utf-8":
        byte = error.object[error.start] if isinstance(error, UnicodeDecodeError) else 0
        is_latin = byte in (0x81, 0x8D, 0x8F, 0x90, 0x9D) or not 0x80 <= byte < 0xA0
        likely = "latin-1" if is_latin else "cp1252"  # latin-1 has control characters where cp1252 has quotes
        advice = f"set its encoding, e.g. {_how(likely)}"
        if is_one_of_many:  # to the others the same would be done, and latin-1 makes something of any bytes
            advice = f"make it UTF-8, or, where all of the files have its encoding, set that, e.g. {_how(likely)}"
    else:
        advice = f"set another encoding, e.g. {_how('utf-8')}"
    if not isinstance(error, UnicodeDecodeError):
        return UserError(f"{part.label}: is not valid {part.encoding} ({reason(error)}); {advice}")
    # The decoder kept back the start of a character from earlier bytes; its positions count from there.
    kept = len(error.object) - size
    offset = done - kept + error.start
    wrong = error.object[error.start : max(error.end, error.start + 1)]
    return UserError(f"{part.label}: byte {offset} (0x{wrong.hex()}) is not valid {part.encoding}; {advice}")


def _pydoc_topics() -> Iterator[str]:
    try:
        topics: dict[str, str] = importlib.import_module("pydoc_data.topics").topics
    except (ImportError, AttributeError) as error:
        raise UserError("builtin:pydoc: this Python comes without pydoc_data.topics") from error
    for name in sorted(topics):
        yield topics[name]
