"""The cache folder: files that are complete or absent, and memory maps of them."""

import hashlib
import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from minigpt.errors import UserError, escape, reason
from minigpt.files import publish, remove_abandoned

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


def release(content: npt.NDArray[Any]) -> None:
    """Make the pages of a large memory map not resident. Otherwise, reading all of it makes all of it resident."""
    base: object = content
    while isinstance(base, np.ndarray) and content.nbytes > RESIDENT:
        base = base.base
    if isinstance(base, mmap.mmap) and hasattr(base, "madvise"):  # Windows has no madvise
        base.madvise(mmap.MADV_DONTNEED)  # the system still caches the pages: to map them again takes microseconds


def short_hash(text: str) -> str:
    """Return half of the SHA-256 of a text, in hexadecimal."""
    return hashlib.sha256(text.encode()).hexdigest()[:32]
