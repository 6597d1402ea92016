"""The cache folder: files that are complete or absent, and copies of standard input, each for one process."""

import atexit
import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

from minigpt.errors import TextError, UserError, escape, reason
from minigpt.files import publish, remove_abandoned
from minigpt.paths import cache_folder

BLOCK = 1 << 20
"""Bytes to copy at a time."""
COPY = ".standard-input-"
"""The start of the name of a copy of standard input."""


@contextmanager
def cached_file(path: Path) -> Iterator[BinaryIO]:
    """Open a cache file for writing. It appears at `path` at the end of the block. Raises UserError."""
    with _prepared(path), publish(path) as temporary, open(temporary, "xb") as file:
        yield file


def copy_to_cache(stream: BinaryIO, head: bytes) -> Path:
    """Copy `head` and the rest of a stream to a cache file, which is deleted when this process exits.

    Raises UserError if less space is left than the copy takes, because the encoded text needs about as much.
    """
    path = cache_folder() / f"{COPY}{uuid4().hex}.tmp"
    with _prepared(path), ExitStack() as end:
        end.callback(path.unlink, missing_ok=True)
        file = end.enter_context(open(path, "xb", buffering=0))
        _try_lock(file)  # until this process ends
        size, block = 0, head
        while block:
            file.write(block)
            size += len(block)
            if size > (free := shutil.disk_usage(path.parent).free):
                problem = f"standard input is too large: {size / 1e9:.1f} GB are read, and {free / 1e9:.1f} GB are free"
                raise TextError(f"{problem}; to copy it to another disk, set MINIGPT_CACHE")
            block = stream.read(BLOCK)
        atexit.register(end.pop_all().close)
    return path


@contextmanager
def _prepared(path: Path) -> Iterator[None]:
    """Create the folder of a cache file, and remove leftovers of killed processes. Turn an OSError into a UserError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_abandoned(path.parent)
        for copy in cache_folder().glob(f"{COPY}*"):
            with suppress(OSError), open(copy, "rb") as file:
                if file.read(1) and _try_lock(file):  # its writer, which locks it first, has ended
                    copy.unlink()
        yield
    except OSError as error:
        problem = f"cannot write to the cache: {escape(error.filename or path)}: {reason(error)}"
        raise UserError(f"{problem}; set MINIGPT_CACHE to use a different folder") from error


def _try_lock(file: BinaryIO) -> bool:
    """Lock an open file until it is closed. Return False if this fails, as when another process holds the lock."""
    if sys.platform == "win32":
        return False
    import fcntl

    with suppress(OSError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False
