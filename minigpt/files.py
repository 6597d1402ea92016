"""Files that a crash, a second process or a stranger cannot spoil: atomic writes, locks, careful reads."""

import errno
import hashlib
import os
import platform
import shutil
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from minigpt.errors import RunLockedError, UserError, escape, reason

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

LOCK = ".lock"
BLOCK = 1 << 20
DAY = 86_400
FOLDERS_CANNOT = (errno.EINVAL, errno.EBADF, errno.ENOTSUP)
"""How disks answer that flush no folders, as some shared over a network or with a virtual machine."""


def write_atomically(path: Path, text: str) -> None:
    """Put `text` into `path` so that whatever happens the old content stands there or the new, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)  # a stranger's link, or left by a process of this number that was killed
    try:
        write_synced(temporary, text)
        os.replace(temporary, path)
        sync_folder(path.parent)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def write_synced(path: Path, text: str) -> None:
    """Write `text` to a new file, through no link, and wait until the disk has it."""
    with open(path, "x", encoding="utf-8", newline="\n") as file:
        file.write(text)
        file.flush()
        sync(file.fileno())


def sync(descriptor: int) -> None:
    """Wait until the disk has what was written to an open file, or done in an open folder."""
    os.fsync(descriptor)
    if sys.platform == "darwin":  # where that waits for the drive's own memory only
        try:
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
        except OSError as error:
            if error.errno not in (errno.ENOTSUP, errno.EINVAL, errno.ENOTTY):  # some file systems cannot
                raise


def sync_file(path: Path) -> None:
    """Wait until the disk has all that was written to `path`."""
    with open(path, "rb+") as file:
        sync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Make what was created, renamed or removed in `folder` survive a power cut, where folders can be flushed."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            sync(descriptor)
        except OSError as error:
            if error.errno not in FOLDERS_CANNOT:
                raise
        finally:
            os.close(descriptor)


def remove_abandoned(folder: Path, pattern: str) -> None:
    """Remove the files and folders of this name that processes which were killed over a day ago left in `folder`."""
    for path in folder.glob(pattern):
        with suppress(OSError):  # published or removed by its own process at this moment, or another user's
            if path.stat().st_mtime > time.time() - DAY:
                continue
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink()


def make_folders(folder: Path) -> None:
    """Make a folder and those above it that are missing, each lasting through a power cut. It may be there already."""
    if not folder.is_dir():
        make_folders(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)


def open_within(path: Path, folder: Path) -> BinaryIO:
    """Open a regular file to read; raises UserError for what a stranger might put in its place.

    A link is followed only where it stays in `folder`; pipes, devices and folders are refused without waiting.
    """
    try:
        if leaves(path, folder):
            raise UserError(f"{escape(path)} is a link out of its folder, which is not followed")
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except OSError as error:
        raise UserError(f"{escape(path)} cannot be read: {reason(error)}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UserError(f"{escape(path)} is not a regular file")
    return os.fdopen(descriptor, "rb")


def leaves(path: Path, folder: Path) -> bool:
    """Return whether `path` leads out of `folder`, by links or, in a circle of them, to nowhere."""
    try:
        return not path.resolve().is_relative_to(folder.resolve())
    except RuntimeError:  # a circle, before Python 3.13
        return True


def read_within(path: Path, folder: Path, limit: int) -> bytes:
    """Return the content of a regular file of at most `limit` bytes, as `open_within` opens it. Raises UserError."""
    with open_within(path, folder) as file:
        if os.fstat(file.fileno()).st_size > limit:
            raise UserError(f"{escape(path)} is larger than the {limit:,} bytes that such a file can have")
        try:
            return file.read(limit)
        except OSError as error:
            raise UserError(f"{escape(path)} cannot be read: {reason(error)}") from error


def read_text_within(path: Path, folder: Path, limit: int) -> str:
    """Return the UTF-8 text of a file that `read_within` reads. Raises UserError."""
    return decoded(read_within(path, folder, limit), path)


def decoded(content: bytes, path: Path) -> str:
    """Return the UTF-8 text in `content`, which was read from `path`. Raises UserError."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{escape(path)} is not UTF-8 text: {reason(error)}") from error


def sha256(file: BinaryIO) -> str:
    """Return the sha256 of what is left to read of `file`, in hexadecimal."""
    digest = hashlib.sha256()
    while block := file.read(BLOCK):
        digest.update(block)
    return digest.hexdigest()


# --- one process at a time ---------------------------------------------------------------------------


@contextmanager
def locked(folder: Path, what: str) -> Iterator[None]:
    """Keep other processes out of `folder` within the block. Raises RunLockedError if one holds the lock.

    The system holds the lock and lets go of it when the process ends, however it ends. The file that it
    is taken on stays; it says who took it last.
    """
    path = folder / LOCK
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        descriptor = os.open(path, flags, 0o644)
    except OSError as error:
        raise UserError(f"cannot lock {what}: {escape(path)}: {reason(error)}") from error
    with os.fdopen(descriptor, "r+b", buffering=0) as file:
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise UserError(f"cannot lock {what}: {escape(path)} is not a regular file")
            if not _lock(file):
                holder = file.read(200).decode("utf-8", "replace").strip() or "another process"
                raise RunLockedError(f"{what} is in use by {escape(holder)}: wait for it to end, or stop it")
            file.truncate(0)
            file.write(f"process {os.getpid()} on {platform.node()}\n".encode())
        except OSError as error:  # some disks that are shared over a network have no locks
            raise UserError(f"cannot lock {what}: {reason(error)}; keep runs on another disk") from error
        yield


if sys.platform == "win32":

    def _lock(file: BinaryIO) -> bool:
        """Take the lock on an open file until that is closed; return whether it could be had."""
        file.seek(1 << 30)  # beyond what is written, for Windows lets nobody read what is locked
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        finally:
            file.seek(0)
        return True

else:

    def _lock(file: BinaryIO) -> bool:
        """Take the lock on an open file until that is closed; return whether it could be had."""
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
