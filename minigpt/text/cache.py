"""The cache folder: files that are complete or absent, and facts about files that have not changed."""

import hashlib
import json
import mmap
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from minigpt.errors import UserError, escape, reason
from minigpt.files import publish, remove_abandoned
from minigpt.paths import cache_folder

RESIDENT = 1 << 28
"""Bytes of a memory map that may stay resident."""


@contextmanager
def cached_file(path: Path) -> Iterator[BinaryIO]:
    """Open a cache file for writing. It appears at `path` at the end of the block, unless the block raises.

    Raises:
        UserError: The cache cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_abandoned(path.parent)
        with publish(path) as temporary, open(temporary, "xb") as file:
            yield file
    except OSError as error:
        problem = f"cannot write to the cache: {escape(error.filename or path)}: {reason(error)}"
        raise UserError(f"{problem}; set MINIGPT_CACHE to use a different folder") from error


def file_state(file: Path | int) -> tuple[int, ...]:
    """Return numbers that change if a file changes. On Windows `st_ctime_ns` is only the time of its creation."""
    status = os.stat(file)
    return status.st_dev, status.st_ino, status.st_size, status.st_ctime_ns, status.st_mtime_ns


def is_intact(path: Path, sha256: str | None, is_trusted: bool = True) -> bool:
    """Return whether a file has this hash. Read it, unless `is_trusted` and it has not changed since the last check."""
    try:
        with open(path, "rb") as file:
            state = sha256, file_state(file.fileno())
            if is_trusted and recall(state):
                return True
            digest = hashlib.sha256()
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    except OSError:
        return False
    is_same = digest.hexdigest() == sha256
    remember(state, is_same)
    return is_same


def release(content: npt.NDArray[Any]) -> None:
    """Make the pages of a large memory map not resident. Otherwise, reading all of it makes all of it resident."""
    base: object = content
    while isinstance(base, np.ndarray) and content.nbytes > RESIDENT:
        base = base.base
    if isinstance(base, mmap.mmap) and hasattr(base, "madvise"):  # Windows has no madvise
        base.madvise(mmap.MADV_DONTNEED)  # the system still caches the pages: to map them again takes microseconds


def recall(state: Sequence[object]) -> Any:
    """Return what is recorded about files in this state, or None if there is no record or it is damaged."""
    with suppress(OSError, ValueError):
        checksum, _, facts = _record(state).read_text(encoding="utf-8").partition("\n")
        if checksum == short_hash(f"{state}\n{facts}"):
            return json.loads(facts)
    return None


def remember(state: Sequence[object], facts: object) -> None:
    """Record facts about files in this state, unless it is empty. Ignore errors: a record only saves time."""
    content = json.dumps(facts)
    if state:
        with suppress(UserError), cached_file(_record(state)) as file:
            checksum = short_hash(f"{state}\n{content}")
            file.write(f"{checksum}\n{content}".encode())


def _record(state: Sequence[object]) -> Path:
    return cache_folder() / "records" / short_hash(repr(state))


def short_hash(text: str) -> str:
    """Return half of the SHA-256 of a text, in hexadecimal."""
    return hashlib.sha256(text.encode()).hexdigest()[:32]
