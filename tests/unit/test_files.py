"""Files are written completely or not at all, and read without trusting them."""

import errno
import os
import signal
import socket
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from minigpt import files
from minigpt.errors import UserError
from minigpt.files import (
    decode,
    make_folders,
    open_within,
    publish,
    read_within,
    remove_abandoned,
    withdraw,
    write_atomically,
)

POSIX = pytest.mark.skipif(os.name != "posix", reason="needs POSIX")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# --- write -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", ["fsync", "replace"])
def test_a_file_is_replaced_completely_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    path = tmp_path / "f"
    write_atomically(path, "old\n")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, function, full)
        with pytest.raises(OSError, match="No space left"):
            write_atomically(path, "new\n")
    assert path.read_text(encoding="utf-8") == "old\n"
    assert names(tmp_path) == ["f"]
    write_atomically(path, "läuft\r\n\x85")
    assert path.read_bytes() == "läuft\r\n\x85".encode()


def test_a_folder_is_published_completely_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    for content in ("old", "new"):
        with publish(path) as building:
            building.mkdir()
            (building / content).touch()
            assert [name for name in names(tmp_path) if not name.startswith(".")] == ["folder"] * (content == "new")
        assert names(path) == [content]
    with pytest.raises(FileExistsError), publish(path) as building:
        building.mkdir() or building.mkdir()
    assert (names(tmp_path), names(path)) == (["folder"], ["new"])


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX")
def test_what_is_replaced_keeps_its_permissions(tmp_path: Path) -> None:
    file, folder = tmp_path / "file", tmp_path / "folder"
    file.touch(mode=0o600)
    folder.mkdir(mode=0o700)
    write_atomically(file, "x")
    with publish(folder) as building:
        building.mkdir()
    assert [path.stat().st_mode & 0o777 for path in (file, folder)] == [0o600, 0o700]


def test_the_content_reaches_the_disk_before_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On many file systems a file that is renamed before it is flushed is empty after a power cut."""
    order: list[str] = []
    fsync, replace = os.fsync, os.replace

    def noted_fsync(descriptor: int) -> None:
        order.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "content")
        fsync(descriptor)

    def noted_replace(*paths: Any) -> None:
        order.append("name")
        replace(*paths)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "replace", noted_replace)
    write_atomically(tmp_path / "f", "text")
    with publish(tmp_path / "folder") as building:
        building.mkdir()
        (building / "f").touch()
    folder = ["folder"] if os.name == "posix" else []
    assert order == ["content", "name", *folder, "content", *folder, "name", *folder]


def test_a_folder_is_hidden_durably_before_its_files_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut could otherwise bring back its name without its files."""
    seen: list[list[str]] = []
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/file").touch()
    monkeypatch.setattr(files, "sync", lambda folder: seen.append([p.name for p in folder.rglob("[!.]*")]))
    withdraw(tmp_path / "folder")
    assert seen == [["file"]], "the name is hidden, and the file is still there"
    assert names(tmp_path) == []


@POSIX
def test_a_file_system_that_cannot_flush_folders_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some network file systems answer EINVAL. Other errors are real."""
    fsync, answer = os.fsync, errno.EINVAL

    def refusing(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(answer, os.strerror(answer))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", refusing)
    make_folders(tmp_path / "a/b")
    write_atomically(tmp_path / "a/b/f", "text")
    assert (tmp_path / "a/b/f").read_text(encoding="utf-8") == "text"
    answer = errno.EIO
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        write_atomically(tmp_path / "a/b/f", "text")


def test_new_folders_are_flushed_into_their_parents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut loses a folder that its parent does not list, with everything in it."""
    synced: list[Path] = []
    monkeypatch.setattr(files, "sync", synced.append)
    (tmp_path / "a").mkdir()
    for _ in range(2):
        make_folders(tmp_path / "a/b/c")
        assert synced == [tmp_path / "a", tmp_path / "a/b"]
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"exists|Not a directory"):
        make_folders(tmp_path / "file/x")


def test_temporary_files_of_killed_processes_are_removed_after_a_day(tmp_path: Path) -> None:
    a, b, folder = (f".{name}.{uuid4().hex}.tmp" for name in "abc")
    others = [".keep-25", ".notes.tmp", ".notes.txt", ".config.yaml.swp", "other"]
    for name, days in ((a, 2), (b, 0.9), *((name, 2) for name in others)):
        (tmp_path / name).write_text("x")
        os.utime(tmp_path / name, (time.time() - days * 86_400,) * 2)
    (tmp_path / folder).mkdir()
    (tmp_path / folder / "file").write_text("x")
    os.utime(tmp_path / folder, (time.time() - 2 * 86_400,) * 2)
    remove_abandoned(tmp_path)
    assert names(tmp_path) == sorted([b, *others])
    remove_abandoned(tmp_path, age=0)
    assert names(tmp_path) == sorted(others)


# --- read --------------------------------------------------------------------------------------------


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Fail if the block takes longer, even if it waits in a system call."""

    def late(*_: object) -> None:
        raise TimeoutError(f"took longer than {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_text("of someone else", encoding="utf-8")
    (tmp_path / "in").mkdir()
    (tmp_path / "in/f").write_bytes(b"text")
    return tmp_path / "in"


@POSIX
def test_a_link_is_followed_only_within_the_folder(folder: Path) -> None:
    (folder / "inside").symlink_to("f")
    assert read_within(folder / "inside", folder, 100) == b"text"
    (folder.parent / "alias").symlink_to(folder, target_is_directory=True)  # the folder itself may be a link
    assert read_within(folder.parent / "alias/f", folder.parent / "alias", 100) == b"text"
    (folder / "out").symlink_to("../secret")
    (folder / "absolute").symlink_to(folder.parent / "secret")
    (folder / "through").symlink_to("out")
    (folder / "sub").symlink_to("..", target_is_directory=True)
    for name in ("out", "absolute", "through", "sub/secret", "../secret"):
        with pytest.raises(UserError, match="is a link that leads out of its folder"):
            read_within(folder / name, folder, 100)


@POSIX
@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        ("pipe", "is not a regular file"),
        ("folder", "is not a regular file"),
        ("socket", "cannot read|is not a regular file"),
        ("loop", "cannot read|link out"),
        ("missing", "cannot read .*: No such file"),
        ("dangling", "cannot read .*: No such file"),
        ("name too long", "cannot read"),
    ],
)
def test_only_regular_files_are_opened(folder: Path, monkeypatch: pytest.MonkeyPatch, kind: str, problem: str) -> None:
    monkeypatch.chdir(folder)  # the path of a socket must be short
    path = folder / ("x" * 5000 if kind == "name too long" else "x\n")
    makers: dict[str, Callable[[], object]] = {
        "pipe": lambda: os.mkfifo(path),
        "folder": path.mkdir,
        "loop": lambda: path.symlink_to(path.name),
        "dangling": lambda: path.symlink_to("nowhere"),
        "socket": lambda: unix.bind(path.name),
    }
    with socket.socket(socket.AF_UNIX) as unix, within(seconds=2):
        makers.get(kind, lambda: None)()
        with pytest.raises(UserError, match=problem) as error, open_within(path, folder):
            pass
    assert "\n" not in str(error.value)


def test_a_file_above_the_limit_is_not_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sparse file costs a stranger nothing and would take all memory."""
    assert read_within(folder / "f", folder, 4) == b"text"
    with open(folder / "sparse", "wb") as file:
        file.truncate(1 << 40)
    for name, limit in (("f", 3), ("sparse", 1 << 20)):
        with pytest.raises(UserError, match=f"is larger than {limit:,} bytes"):
            read_within(folder / name, folder, limit)


def test_text_is_utf_8_with_or_without_a_byte_order_mark(folder: Path) -> None:
    assert decode("\ufeffläuft\r\n".encode(), folder / "f") == "läuft\r\n"
    with pytest.raises(UserError, match=r"f is not UTF-8 text: .*0xff"):
        decode(b"\xff", folder / "f")
