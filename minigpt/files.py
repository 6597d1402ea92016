"""Write files that are either complete or absent, even after a crash, and read untrusted files safely."""

import errno
import hashlib
import os
import re
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

from minigpt.errors import UserError, escape, reason
from minigpt.world import free_memory


@contextmanager
def publish(path: Path) -> Iterator[Path]:
    """Yield a temporary path next to `path`. Rename it to `path` at the end of the block, or remove it on error.

    The block creates a file or a folder of files there. It replaces any file or folder at `path`, whose permissions it
    keeps.
    """
    temporary = path.with_name(f".{path.name}.{uuid4().hex}.tmp")
    try:
        yield temporary
        if path.exists():
            shutil.copymode(path, temporary)
        is_folder = temporary.is_dir()
        for part in (*temporary.iterdir(), temporary) if is_folder else (temporary,):
            sync(part)
        if is_folder:
            withdraw(path)  # rename cannot replace a folder
        os.replace(temporary, path)
        sync(path.parent)
    except BaseException:
        remove(temporary)
        raise


def withdraw(folder: Path) -> None:
    """Hide a folder, then remove it, so that no other process sees it partly removed."""
    if folder.is_dir():
        hidden = folder.with_name(f".{folder.name}.{uuid4().hex}.tmp")
        os.rename(folder, hidden)
        sync(folder.parent)  # otherwise a power cut could restore the name without the files
        remove(hidden)


def remove(path: Path) -> None:
    """Remove a file or folder. Ignore it if it is missing or in use."""
    with suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def is_temporary(name: str) -> bool:
    """Return whether `name` has the form of the temporary names that `publish` and `withdraw` use."""
    return re.fullmatch(r"\..*[0-9a-f]{32}\.tmp", name) is not None


def remove_abandoned(folder: Path, age: float = 86_400) -> None:
    """Remove temporary files left by killed processes: those at least `age` seconds old."""
    for path in folder.glob(".*.tmp"):
        with suppress(OSError):
            if is_temporary(path.name) and path.lstat().st_mtime <= time.time() - age:
                sync(folder)  # as in `withdraw`
                remove(path)


def write_atomically(path: Path, text: str) -> None:
    """Write a text file. A crash leaves either the old or the new content, never part of it."""
    with publish(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def sync(path: Path) -> None:
    """Flush a file, or the entries of a folder, to disk. Creations, renames and removals then survive a power cut."""
    is_folder = path.is_dir()
    if is_folder and os.name != "posix":
        return
    descriptor = os.open(path, os.O_RDONLY if is_folder else os.O_RDWR)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems cannot flush a folder.
        if not is_folder or error.errno not in (errno.EINVAL, errno.EBADF, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def make_folders(folder: Path) -> None:
    """Create a folder and any missing parents, so that they survive a power cut."""
    if not folder.is_dir():
        make_folders(folder.parent)
        folder.mkdir(exist_ok=True)
        sync(folder.parent)


def open_within(path: Path, folder: Path, limit: int | None = None) -> BinaryIO:
    """Open a file for reading.

    Raises:
        UserError: It is outside `folder`, not a regular file, larger than `limit` bytes, or cannot be opened.
    """
    try:
        if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):
            raise UserError(f"{escape(path)} is a link that leads out of its folder")
        # O_NONBLOCK: opening a pipe must not wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except OSError as error:
        raise UserError(f"cannot read {escape(path)}: {reason(error)}") from error
    status = os.fstat(descriptor)
    is_regular = stat.S_ISREG(status.st_mode)
    if not is_regular or (limit is not None and status.st_size > limit):
        os.close(descriptor)
        raise UserError(f"{escape(path)} is {f'larger than {limit:,} bytes' if is_regular else 'not a regular file'}")
    return os.fdopen(descriptor, "rb")


def read_within(path: Path, folder: Path, limit: int) -> bytes:
    """Return the contents of a file, opened with `open_within`. Raises UserError.

    Raise MemoryError if the file and what is parsed from it do not fit into free memory.
    """
    with open_within(path, folder, limit) as file:
        size = os.fstat(file.fileno()).st_size
        if 2 * size > (free_memory() or 2 * size):
            raise MemoryError
        try:
            return file.read(size)
        except OSError as error:
            raise UserError(f"cannot read {escape(path)}: {reason(error)}") from error


def hash_within(path: Path, folder: Path, limit: int) -> str:
    """Return the SHA-256 of a file, opened with `open_within` and read in blocks. Raises UserError."""
    hashed = hashlib.sha256()
    with open_within(path, folder, limit) as file:
        try:
            while block := file.read(1 << 20):
                hashed.update(block)
        except OSError as error:
            raise UserError(f"cannot read {escape(path)}: {reason(error)}") from error
    return hashed.hexdigest()


def decode(content: bytes, path: Path) -> str:
    """Decode `content`, read from `path`, as UTF-8 text. Raises UserError."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{escape(path)} is not UTF-8 text: {reason(error)}") from error
