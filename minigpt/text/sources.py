"""Text sources: find the files that `my.txt`, a folder, a glob, `-`, `builtin:NAME` or `download:NAME` stands for."""

from __future__ import annotations

import atexit
import codecs
import importlib
import os
import stat
import sys
import sysconfig
import tokenize
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from encodings.aliases import aliases
from itertools import takewhile
from pathlib import Path
from uuid import uuid4

from minigpt.errors import EncodingError, TextError, did_you_mean, escape, reason
from minigpt.paths import cache_folder, is_run
from minigpt.text.cache import cached_file
from minigpt.text.corpus import BLOCK, Corpus, Part
from minigpt.text.download import download, downloads

HEAD = 8 << 10
"""Bytes at the start of a file. A NUL character among them marks a binary file."""
PAGE_MARK = b'<meta name="generator" content="minigpt '
"""Marks an HTML page that minigpt wrote."""
BUILTINS = {
    "python": "source code of this Python's standard library, without tests (about 11 MB)",
    "pydoc": "the language reference behind Python's help() (about 0.5 MB)",
}

Skipped = defaultdict[str, set[Path]]
"""Skipped files and folders by kind, such as "binary file"."""


def open_corpus(sources: str | Sequence[str], encoding: str = "utf-8") -> Corpus:
    """Return the corpus of one source, or of several joined in order.

    Args:
        sources: Each a file, a folder, a glob, `-` for standard input, `builtin:NAME` or `download:NAME`.
        encoding: Python's name for the encoding of files and standard input.

    Raises:
        TextError: A source is missing, unreadable or binary, or all of them are empty.
    """
    entries = [sources] if isinstance(sources, str) else list(sources)
    if not entries:
        raise TextError("no text was named")
    codec = _codec_name(encoding)
    found = [_find(entry, codec) for entry in entries]
    notices = tuple(notice for corpus in found for notice in corpus.notices)
    found = [corpus for corpus in found if corpus.parts]
    if not found:
        where = escape(entries[0]) if len(entries) == 1 else f"{len(entries)} sources"
        raise TextError("; ".join([f"no text in {where}", *notices]))
    name = found[0].name if len(found) == 1 else f"{len(found)} texts"
    corpus = Corpus(name, tuple(part for one in found for part in one.parts), notices)
    if next(corpus.blocks(), None) is None:
        raise TextError(f"{name}: the text is empty")
    return corpus


def _codec_name(encoding: str) -> str:
    try:
        "".encode(encoding)  # a LookupError for codecs that are no text encodings, such as rot13
        codecs.getincrementaldecoder(encoding)
    except (LookupError, ValueError) as error:
        names = (name.replace("_", "-") for name in aliases.values())
        raise TextError(f"unknown text encoding {encoding!r}{did_you_mean(encoding.lower(), names)}") from error
    name = codecs.lookup(encoding).name
    return "utf-8" if name == "utf-8-sig" else name


def _find(entry: str, encoding: str) -> Corpus:
    scheme, _, name = entry.partition(":")
    if scheme == "builtin":
        return _builtin(name)
    if scheme == "download":
        path, item = download(name), downloads()[name]
        return Corpus(entry, (Part(entry, path, item.encoding, item.member),))
    if entry == "-":
        return _standard_input(encoding)
    if not entry:
        raise TextError("a text source has an empty name")
    path = Path(os.path.expanduser(entry))
    if _is_glob(entry) and not os.path.exists(path):
        return _glob(path, encoding)
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError) as error:
        raise TextError(f"{escape(entry)}: no such file or folder{_similar(path)}") from error
    except (OSError, ValueError) as error:
        raise TextError(f"{escape(entry)}: cannot be read ({reason(error)})") from error
    if stat.S_ISDIR(mode):
        return _folder(path, encoding)
    if not stat.S_ISREG(mode):
        raise TextError(f"{escape(entry)}: is neither a file nor a folder; only standard input (-) can be a stream")
    return _file(escape(path.name), Part(escape(path), path, encoding))


def _similar(path: Path) -> str:
    """Return a hint at a file with a similar name, or at a source whose prefix is missing."""
    names = [f"builtin:{name}" for name in BUILTINS] + [f"download:{name}" for name in downloads()]
    with suppress(OSError):  # the folder is missing too
        names += os.listdir(path.parent)
    return did_you_mean(path.name, names)


# --- files, folders and globs --------------------------------------------------------------------------


def _file(name: str, part: Part) -> Corpus:
    """Return a file as a corpus. Raise EncodingError if it is binary."""
    head = _head(part)
    if _is_binary(head, part.encoding):
        is_utf16 = head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        raise EncodingError(f"{part.label}: is a binary file, not text", suggestion="utf-16" if is_utf16 else "")
    return Corpus(name, (part,))


def _head(part: Part) -> bytes:
    return next(part.chunks(HEAD), b"")


def _is_binary(head: bytes, encoding: str) -> bool:
    if encoding.startswith(("utf-16", "utf-32")):
        return "\0" in head.decode(encoding, errors="replace")
    return b"\0" in head


def _folder(folder: Path, encoding: str) -> Corpus:
    """Return the text files in a folder and its subfolders."""

    def fail(error: OSError) -> None:
        raise TextError(f"{escape(error.filename)}: cannot be read ({reason(error)})") from error

    files: list[Path] = []
    skipped: Skipped = defaultdict(set)
    for parent, folders, names in os.walk(folder, onerror=fail):
        folders[:] = [name for name in folders if not _is_skipped(Path(parent, name), skipped)]
        files += [path for name in names if not _is_skipped(path := Path(parent, name), skipped)]
    return _text_files(escape(folder).rstrip("/\\") + "/", files, encoding, skipped)


def _is_glob(name: str) -> bool:
    return any(wildcard in name for wildcard in "*?[")


def _glob(pattern: Path, encoding: str) -> Corpus:
    """Return the text files that match a glob, in which `**` stands for any number of folders."""
    base = Path(*takewhile(lambda part: not _is_glob(part), pattern.parts))
    relative = pattern.relative_to(base).as_posix()
    if relative.endswith("**"):
        relative += "/*"  # before Python 3.13, `**` alone matches only folders
    try:
        matches = set(base.glob(relative))
    except (ValueError, OSError) as error:
        raise TextError(f"{escape(pattern)}: is not a valid pattern ({reason(error)})") from error
    skipped: Skipped = defaultdict(set)
    files = []
    for path in matches:
        below_base = [parent for parent in path.parents if base in parent.parents]
        if not any(_is_skipped(each, skipped) for each in (*reversed(below_base), path)):
            files.append(path)
    return _text_files(escape(pattern), files, encoding, skipped)


def _is_skipped(path: Path, skipped: Skipped) -> bool:
    """Return True for a hidden file or folder, a link, or a run. Record links and runs in `skipped`.

    A link could lead out of the folder, or in a circle.
    """
    if path.name.startswith("."):
        return True
    kind = "link" if path.is_symlink() else "minigpt run" if is_run(path) else ""
    if kind:
        skipped[kind].add(path)
    return bool(kind)


def _text_files(name: str, files: Sequence[Path], encoding: str, skipped: Skipped) -> Corpus:
    """Return `files` in the order of their paths, without binary files and minigpt's own HTML pages."""
    parts = []
    for path in sorted(filter(Path.is_file, files), key=Path.as_posix):
        part = Part(escape(path), path, encoding)
        head = _head(part)
        if PAGE_MARK in head:
            skipped["minigpt page"].add(path)
        elif _is_binary(head, encoding):
            skipped["binary file"].add(path)
        else:
            parts.append(part)
    notices = (
        f"{name}: skipped {len(paths)} {kind}{'s' if len(paths) > 1 else ''} (first: {escape(min(paths).name)})"
        for kind, paths in skipped.items()
    )
    return Corpus(name, tuple(parts), tuple(notices))


# --- standard input and built-in texts -----------------------------------------------------------------


def _standard_input(encoding: str) -> Corpus:
    if sys.stdin is None or sys.stdin.isatty():
        raise TextError("standard input has no text: it is a terminal or closed")
    chunks = iter(lambda: sys.stdin.buffer.read(BLOCK), b"")
    return _file("standard input", _temporary_copy("standard input", chunks, encoding))


def _builtin(name: str) -> Corpus:
    if name not in BUILTINS:
        known = ", ".join(BUILTINS)
        raise TextError(f"no built-in text is named {name!r}{did_you_mean(name, BUILTINS)} (known: {known})")
    chunks = _python_sources() if name == "python" else _pydoc_topics()
    return Corpus(f"builtin:{name}", (_temporary_copy(f"builtin:{name}", chunks, "utf-8"),))


def _temporary_copy(label: str, chunks: Iterable[bytes], encoding: str) -> Part:
    """Copy bytes to a file in the cache, and delete it when this process ends."""
    path = cache_folder() / f".{uuid4().hex}.tmp"
    atexit.register(path.unlink, missing_ok=True)
    with cached_file(path) as file:
        file.writelines(chunks)
    return Part(label, path, encoding)


def _python_sources() -> Iterator[bytes]:
    """Yield the modules of the standard library in the order of their paths, with `\\n` as line end.

    Skip tests, other packages, and files that differ between machines.
    """
    root = Path(sysconfig.get_path("stdlib"))
    skipped = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__", "lib-dynload"}
    prefixes = ("test_", "_sysconfigdata", "sitecustomize", "usercustomize")
    files: list[Path] = []
    for parent, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in skipped and not name.startswith("config-")]
        files += [Path(parent, n) for n in names if n.endswith(".py") and not n.startswith(prefixes)]
    if not files:
        raise TextError(f"builtin:python: this Python has no source code of its library in {escape(root)}")
    for path in sorted(files, key=lambda path: path.relative_to(root).as_posix()):
        try:
            with tokenize.open(path) as file:
                source = file.read()
        except (SyntaxError, UnicodeDecodeError):
            continue  # some files of the library test how Python handles a wrong encoding
        yield source.encode()


def _pydoc_topics() -> Iterator[bytes]:
    try:
        topics: dict[str, str] = importlib.import_module("pydoc_data.topics").topics
    except (ImportError, AttributeError) as error:
        raise TextError("builtin:pydoc: this Python has no pydoc_data.topics") from error
    for name in sorted(topics):
        yield topics[name].encode()
