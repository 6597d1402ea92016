"""Write files that are either complete or absent, even after a crash, and read untrusted files safely."""

import errno
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

    The block creates a file or a folder of files there. A file replaces a file at `path`, and a folder
    replaces a folder. The permissions of `path` stay.
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
    """Remove a file or folder. Ignore what is missing or cannot be removed."""
    with suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def is_temporary(name: str) -> bool:
    """Return whether `name` has the form of the temporary names that `publish` and `withdraw` use."""
    return re.fullmatch(r"\..*[0-9a-f]{32}\.tmp", name) is not None


def remove_abandoned(folder: Path, age: float = 86_400) -> None:
    """Remove the temporary files and folders of killed processes: those at least `age` seconds old."""
    for path in folder.glob(".*.tmp"):
        with suppress(OSError):
            if is_temporary(path.name) and path.lstat().st_mtime <= time.time() - age:
                sync(folder)  # as in `withdraw`
                remove(path)


def write_atomically(path: Path, text: str) -> None:
    """Write a text file. A crash leaves all of the old content or all of the new."""
    with publish(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def sync(path: Path) -> None:
    """Flush a file to disk, or on POSIX the names in a folder: what was created, renamed or removed in it."""
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


@contextmanager
def open_within(path: Path, folder: Path, limit: int | None = None) -> Iterator[BinaryIO]:
    """Open a file for reading in the block.

    Raises:
        UserError: The file is outside `folder`, not a regular file, larger than `limit` bytes, or cannot be read.
    """
    try:
        if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):
            raise UserError(f"{escape(path)} is a link that leads out of its folder")
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # opening a pipe would wait for a writer
            raise UserError(f"{escape(path)} is not a regular file")
        if limit is not None and status.st_size > limit:
            raise UserError(f"{escape(path)} is larger than {limit:,} bytes")
        with open(path, "rb") as file:
            yield file
    except OSError as error:
        raise UserError(f"cannot read {escape(path)}: {reason(error)}") from error


def read_within(path: Path, folder: Path, limit: int) -> bytes:
    """Return the contents of a file, opened with `open_within`. Raises UserError.

    Raise MemoryError if free memory is less than twice the file's size, for the contents and the parsed result.
    """
    with open_within(path, folder, limit) as file:
        size = os.fstat(file.fileno()).st_size
        if 2 * size > (free_memory() or 2 * size):
            raise MemoryError
        return file.read(size)


def decode(content: bytes, path: Path) -> str:
    """Decode `content`, read from `path`, as UTF-8 text. Raises UserError."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{escape(path)} is not UTF-8 text: {reason(error)}") from error
