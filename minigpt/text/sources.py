"""Text sources: find the text that `my.txt`, a folder, a glob, `-`, `builtin:NAME` or `download:NAME` refers to."""

from __future__ import annotations

import codecs
import os
import re
import sys
import sysconfig
import tokenize
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from itertools import takewhile
from pathlib import Path
from pydoc_data.topics import topics

from minigpt.errors import EncodingError, TextError, TextNotFoundError, did_you_mean, escape, reason
from minigpt.paths import cache_folder, is_run
from minigpt.text.cache import copy_to_cache
from minigpt.text.corpus import Corpus, Part
from minigpt.text.download import download, downloads
from minigpt.text.stories import MAX_SEED, stories

HEAD = 8 << 10
"""Bytes to check at the start of a file."""
CONTROLS = re.compile(rb"[\x01-\x08\x0e-\x1a\x1c-\x1f]")
"""Bytes that are not part of a text in an 8-bit encoding."""
DOCUMENTS = (b"%PDF-", b"{\\rtf", b"PK\x03\x04")
"""The first bytes of PDF, RTF and zip files, which may otherwise look like a text."""
PAGE_MARK = b'<meta name="generator" content="minigpt '
"""Marks an HTML page written by minigpt."""
BUILTINS = {
    "python": "standard library source of this Python, without tests (10 to 12 MB)",
    "pydoc": "the language reference behind Python's help() (about 0.5 MB)",
    "stories": "little stories, the same everywhere (1 MB, or stories:LENGTH:SEED)",
}
STORIES = 1_000_000, 1
"""The length, in characters, and the seed of `builtin:stories`."""
MAX_STORIES = 10**10
SYSTEM = (Path("/proc"), Path("/sys"))
"""Folders of the kernel. Reading some of their files blocks."""


def open_corpus(sources: str | Sequence[str], encoding: str = "utf-8") -> Corpus:
    """Open one source, or several joined in the given order, as a corpus.

    Args:
        sources: Each is a file, a folder, a glob, `-` for standard input, `builtin:NAME` or `download:NAME`.
        encoding: Encoding of files and standard input, as a Python codec name.

    Raises:
        TextError: A source is missing, unreadable or binary, or all sources are empty.
    """
    entries = [sources] if isinstance(sources, str) else list(sources)
    codec = _codec_name(encoding)
    corpora = [_find(entry, codec) for entry in entries]
    notices = tuple(notice for corpus in corpora for notice in corpus.notices)
    corpora = [corpus for corpus in corpora if corpus.parts]
    if not corpora:
        where = escape(entries[0]) if len(entries) == 1 else f"{len(entries)} sources"
        raise TextError("; ".join([f"no text in {where}", *notices]))
    name = corpora[0].name if len(corpora) == 1 else f"{len(corpora)} texts"
    corpus = Corpus(name, tuple(part for corpus in corpora for part in corpus.parts), notices)
    if next(corpus.blocks(), None) is None:
        raise TextError(f"{name}: the text is empty")
    return corpus


def _codec_name(encoding: str) -> str:
    try:
        "".encode(encoding)  # raises LookupError for codecs that are not text encodings, such as rot13
        codecs.getincrementaldecoder(encoding)
    except (LookupError, ValueError) as error:
        raise TextError(f"unknown text encoding {encoding!r}") from error
    return codecs.lookup(encoding).name


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
    if name.startswith("//"):
        raise TextError(f"{escape(entry)} is an address; download it and save it as plain text first")
    path = Path(os.path.expanduser(entry))
    if _is_glob(entry) and not os.path.exists(path):
        return _text_files(escape(path), path, encoding)
    try:
        path.stat()
        is_a_run = path.is_dir() and is_run(path)
    except FileNotFoundError as error:
        similar = _similar(path)
        raise TextNotFoundError(f"no file is named '{escape(entry)}'{similar}", entry, bool(similar)) from error
    except (OSError, ValueError) as error:
        raise TextError(f"cannot read {escape(entry)}: {reason(error)}") from error
    if is_a_run:
        raise TextNotFoundError(f"{escape(entry)} is no text", entry)
    if path.is_dir():
        return _text_files(escape(path).rstrip("/\\") + "/", path, encoding)
    if not path.is_file() or entry.startswith(("/dev/stdin", "/dev/fd/", "/proc/")):
        raise TextError(f"{escape(entry)} is neither a file nor a folder; only standard input (-) can be a stream")
    return _file(escape(path.name), Part(escape(path), path, encoding))


def _similar(path: Path) -> str:
    """Return a hint that names a similar file, or a source whose prefix is missing."""
    names = [f"builtin:{name}" for name in BUILTINS] + [f"download:{name}" for name in downloads()]
    with suppress(OSError):  # the folder is missing too
        names += os.listdir(path.parent)
    return did_you_mean(path.name, names)


# --- files, folders and globs --------------------------------------------------------------------------


def _file(name: str, part: Part) -> Corpus:
    """Return a file as a corpus. Raise TextError if it is not plain text."""
    _check_plain(next(part.chunks(HEAD), b""), part)
    return Corpus(name, (part,))


def _check_plain(head: bytes, part: Part) -> None:
    """Raise TextError if a file that starts with `head` is not plain text."""
    if _is_binary(head, part.encoding):
        if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            raise EncodingError(f"{part.label} is UTF-16 text, not {part.encoding}", suggestion="utf-16")
        raise TextError(f"{part.label} is a binary file; save it as plain text first")


def _is_binary(head: bytes, encoding: str) -> bool:
    """Return whether `head` starts a document, has a NUL character, or is not in `encoding` and has `CONTROLS`."""
    if head.startswith(DOCUMENTS):
        return True
    if encoding.startswith(("utf-16", "utf-32")):
        return "\0" in head.decode(encoding, errors="replace")
    try:
        codecs.getincrementaldecoder(encoding)().decode(head)  # it may end inside a character
    except UnicodeError:
        return b"\0" in head or CONTROLS.search(head) is not None
    return b"\0" in head


def _is_glob(name: str) -> bool:
    return any(wildcard in name for wildcard in "*?[")


def last_change(entry: str) -> float | None:
    """Return when any file of a text source last changed, in seconds since 1970, without opening files.

    None if there is no file. 0 for standard input, built-in texts and downloads.
    """
    if entry == "-" or entry.startswith(("builtin:", "download:")):
        return 0.0
    path = Path(os.path.expanduser(entry))
    try:
        is_one = path.is_file() or not (path.is_dir() or _is_glob(entry))
        files = [path] if is_one else _matches(path)[0]
        return max((file.stat().st_mtime for file in files), default=None)
    except (OSError, ValueError, RecursionError):
        return None


def _text_files(name: str, path: Path, encoding: str) -> Corpus:
    """Return the text files that are in a folder or match a glob, sorted by path.

    Ignore hidden files and folders. Skip links (they could form a cycle), runs, the cache, minigpt's HTML pages and
    binary files, and report them in a notice.
    """
    parts: list[Part] = []
    try:
        files, skipped = _matches(path)
        for file in files:
            part = Part(escape(file), file, encoding)
            head = next(part.chunks(HEAD), b"")
            if PAGE_MARK in head or _is_binary(head, encoding):
                skipped.add(file)
            else:
                parts.append(part)
    except (ValueError, OSError, RecursionError) as error:
        place = escape(getattr(error, "filename", None) or name)
        raise TextError(f"cannot read {place}: {reason(error)}") from error
    notices = [f"{name}: {len(parts):,} files"] if len(parts) > 1 else []
    if skipped:
        first = escape(min(skipped, key=Path.as_posix).name)
        notices.append(f"{name}: skipped links, runs, pages or binary files ({len(skipped)}, first: {first})")
    return Corpus(name, tuple(parts), tuple(notices))


def _matches(path: Path) -> tuple[list[Path], set[Path]]:
    """Return the files that are in a folder or match a glob, sorted by path, and links, runs and folders to skip."""
    base, pattern = path, "**/*"
    if not path.exists():
        base = Path(*takewhile(lambda part: not _is_glob(part), path.parts))
        pattern = path.relative_to(base).as_posix()

    @cache
    def is_skipped(path: Path) -> bool:
        return path.is_symlink() or path.absolute() in (cache_folder(), *SYSTEM) or (path.is_dir() and is_run(path))

    # Python 3.13 changed the meaning of a `**` at the end of a pattern, and of `**` within a name.
    parts = [part if part == "**" else re.sub(r"\*+", "*", part) for part in pattern.split("/")]
    files, skipped = set[Path](), set[Path]()
    for file in base.glob("/".join([*parts, "*"] if parts[-1] == "**" else parts)):
        below = [file, *file.parents][: len(file.parts) - len(base.parts)]
        if any(part.name.startswith(".") for part in below):
            continue
        if barrier := next(filter(is_skipped, reversed(below)), None):  # `*/a.txt` would follow a link
            skipped.add(barrier)
        elif file.is_file():
            files.add(file)
    return sorted(files, key=Path.as_posix), skipped


# --- standard input and built-in texts -----------------------------------------------------------------


def _standard_input(encoding: str) -> Corpus:
    """Copy standard input to a cache file, which is deleted when this process exits."""
    if sys.stdin is None or sys.stdin.isatty():
        raise TextError("standard input has no text: it is a terminal or is closed")
    part = Part("standard input", Path(), encoding)
    head = sys.stdin.buffer.read(HEAD)
    _check_plain(head, part)  # before copying, which may take time and disk space
    return Corpus(part.label, (replace(part, path=copy_to_cache(sys.stdin.buffer, head)),))


def _builtin(name: str) -> Corpus:
    if name == "python":
        texts: Callable[[], Iterator[str]] = _python_sources
    elif name == "pydoc":
        texts = partial(map, topics.__getitem__, sorted(topics))
    elif name.partition(":")[0] == "stories":
        texts = partial(stories, *_length_and_seed(name))
    else:
        names = ", ".join(BUILTINS)
        raise TextError(f"no built-in text is named {name!r}{did_you_mean(name, BUILTINS)} (known: {names})")
    return Corpus(f"builtin:{name}", (Part(f"builtin:{name}", Path(f"builtin:{name}"), texts=texts),))


def _length_and_seed(name: str) -> tuple[int, int]:
    """Return the parameters of `stories`, `stories:LENGTH` or `stories:LENGTH:SEED`."""
    match = re.fullmatch("stories(?::([0-9]{1,20}))?(?::([0-9]{1,20}))?", name)
    length, seed = (int(match[1] or STORIES[0]), int(match[2] or STORIES[1])) if match else (0, 0)
    if not (0 < length <= MAX_STORIES and seed <= MAX_SEED):
        form = "builtin:stories:LENGTH or builtin:stories:LENGTH:SEED"
        limits = f"a length from 1 to {MAX_STORIES:,} characters and a seed from 0 to {MAX_SEED:,}"
        raise TextError(f"builtin:{escape(name)} is not {form}, with {limits}")
    return length, seed


def _python_sources() -> Iterator[str]:
    """Yield the source of each standard library module, sorted by path, with `\\n` line endings.

    Skip tests, installed packages, and files that differ between machines.
    """
    root = Path(sysconfig.get_path("stdlib"))
    skipped = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__", "lib-dynload"}
    prefixes = ("test_", "_sysconfigdata", "sitecustomize", "usercustomize")
    files: list[Path] = []
    for parent, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in skipped and not name.startswith("config-")]
        files += [Path(parent, n) for n in names if n.endswith(".py") and not n.startswith(prefixes)]
    if not files:
        raise TextError(f"builtin:python: this Python has no standard library source in {escape(root)}")
    for path in sorted(files, key=lambda path: path.relative_to(root).as_posix()):
        try:
            with tokenize.open(path) as file:
                source = file.read()
        except (SyntaxError, UnicodeDecodeError):
            continue  # some library files test how Python handles invalid encodings
        yield source
