"""Files: written whole or not at all, locked by one process at a time, and read without surprises."""

import errno
import hashlib
import io
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from minigpt import files
from minigpt.errors import UserError
from minigpt.files import (
    LOCK,
    RunLockedError,
    locked,
    make_folders,
    open_within,
    read_text_within,
    read_within,
    remove_abandoned,
    sha256,
    write_atomically,
)

ROOT = Path(__file__).resolve().parents[2]
POSIX = pytest.mark.skipif(os.name != "posix", reason="links and pipes as POSIX has them")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# --- the lock ----------------------------------------------------------------------------------------

HOLD = f"""
import sys
from pathlib import Path
sys.path.insert(0, {str(ROOT)!r})
from minigpt.files import locked
with locked(Path(sys.argv[1]), "it"):
    print("held", flush=True)
    sys.stdin.readline()
"""


@contextmanager
def holder(folder: Path) -> "Iterator[subprocess.Popen[str]]":
    """Another process, which has locked `folder`."""
    command = [sys.executable, "-c", HOLD, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_second_process_is_refused_and_told_who_is_in(tmp_path: Path) -> None:
    with holder(tmp_path) as first:
        with pytest.raises(RunLockedError, match=rf"^run r is in use by process {first.pid} on \S+: wait for it"):
            enter(tmp_path)
        assert first.communicate("end\n")[0] == ""
        assert first.returncode == 0
        enter(tmp_path)  # it let go


def enter(folder: Path) -> None:
    with locked(folder, "run r"):
        pass


def test_a_process_that_is_killed_leaves_no_lock_behind(tmp_path: Path) -> None:
    """A lock that is the mere presence of a file must be removed by hand after every crash."""
    with holder(tmp_path) as first:
        first.kill()
        first.wait()
        assert (tmp_path / LOCK).exists()
        enter(tmp_path)


def test_a_lock_holds_within_a_process_too_and_goes_with_an_error(tmp_path: Path) -> None:
    with locked(tmp_path, "run r"):
        with pytest.raises(RunLockedError, match=rf"in use by process {os.getpid()} "):
            enter(tmp_path)
        with pytest.raises(RunLockedError):  # the refused attempt before did not let go of it
            enter(tmp_path)
    with pytest.raises(ZeroDivisionError), locked(tmp_path, "run r"):
        _ = 1 / 0
    enter(tmp_path)


@pytest.mark.parametrize("written", [b"", b"\xff\xfe\x1b[2J\nsecond line" * 50])
def test_what_stands_in_the_lock_of_another_is_shown_in_one_harmless_line(tmp_path: Path, written: bytes) -> None:
    with locked(tmp_path, "run r"):
        (tmp_path / LOCK).write_bytes(written)
        with pytest.raises(RunLockedError) as error:
            enter(tmp_path)
    assert str(error.value).isprintable()
    assert len(str(error.value)) < 1000
    assert written or "another process" in str(error.value)


@POSIX
@pytest.mark.parametrize("kind", ["folder", "link", "missing folder"])
def test_a_lock_that_cannot_be_taken_is_one_line(tmp_path: Path, kind: str) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious", encoding="utf-8")
    if kind == "folder":
        (tmp_path / LOCK).mkdir()
    elif kind == "link":
        (tmp_path / LOCK).symlink_to(victim)
    with pytest.raises(UserError, match=r"^cannot lock run r: .*\.lock: \w"):
        enter(tmp_path / "none" if kind == "missing folder" else tmp_path)
    assert victim.read_text(encoding="utf-8") == "precious"


@POSIX
def test_a_pipe_in_the_place_of_a_lock_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / LOCK)
    with within(seconds=2), pytest.raises(UserError, match=r"\.lock"):
        enter(tmp_path)


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Fail when the block, which may wait for ever in the system, takes longer than this."""

    def late(*_: object) -> None:
        raise TimeoutError(f"took longer than {seconds} s")

    assert threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# --- writing -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", ["fsync", "replace"])
def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str) -> None:
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


@POSIX
def test_a_link_where_the_new_content_is_gathered_is_not_written_through(tmp_path: Path) -> None:
    """A stranger can guess the number of a process, or make a link for each."""
    outside, path = tmp_path / "outside", tmp_path / "f"
    outside.write_text("theirs", encoding="utf-8")
    (tmp_path / f".f.{os.getpid()}").symlink_to(outside)
    write_atomically(path, "new\n")
    assert (outside.read_text(encoding="utf-8"), path.read_text(encoding="utf-8")) == ("theirs", "new\n")
    assert names(tmp_path) == ["f", "outside"]


@POSIX
def test_a_disk_that_flushes_no_folders_is_written_to_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Folders that are shared with a virtual machine or over a network answer so; what else fails is told."""
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


def test_a_replaced_file_is_on_disk_before_its_name_and_its_name_before_the_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Renamed before it is flushed, a file is empty after a power cut on many file systems."""
    order: list[str] = []
    fsync, replace = os.fsync, os.replace

    def noted_fsync(descriptor: int) -> None:
        order.append("folder" if os.path.isdir(f"/proc/self/fd/{descriptor}") else "content")
        fsync(descriptor)

    def noted_replace(*paths: Any) -> None:
        order.append("name")
        replace(*paths)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "replace", noted_replace)
    write_atomically(tmp_path / "f", "text")
    assert order[:2] == ["content", "name"]
    assert order[2:] == (["folder"] if sys.platform == "linux" else order[2:])


def test_readers_of_a_file_that_is_replaced_all_the_time_see_a_whole_one(tmp_path: Path) -> None:
    path, stop = tmp_path / "f", threading.Event()
    contents = ["a" * 100_000, "b" * 50_000]
    write_atomically(path, contents[0])

    def replace() -> None:
        while not stop.is_set():
            for content in contents:
                write_atomically(path, content)

    writer = threading.Thread(target=replace)
    writer.start()
    try:
        for _ in range(200):
            assert path.read_text(encoding="utf-8") in contents
    finally:
        stop.set()
        writer.join()


@POSIX
def test_folders_are_flushed_into_the_ones_above_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new folder that its parent does not know of on disk is lost in a power cut with all that was flushed in it."""
    synced: list[Path] = []
    monkeypatch.setattr(files, "sync_folder", synced.append)
    (tmp_path / "a").mkdir()
    make_folders(tmp_path / "a/b/c")
    assert (tmp_path / "a/b/c").is_dir()
    assert synced == [tmp_path / "a", tmp_path / "a/b"]
    make_folders(tmp_path / "a/b/c")
    assert len(synced) == 2
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"exists|Not a directory"):
        make_folders(tmp_path / "file/x")


# --- reading -----------------------------------------------------------------------------------------


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
    (folder / "out").symlink_to("../secret")
    (folder / "absolute").symlink_to(folder.parent / "secret")
    (folder / "through").symlink_to("out")
    (folder / "sub").symlink_to("..", target_is_directory=True)
    for name in ("out", "absolute", "through", "sub/secret", "../secret"):
        with pytest.raises(UserError, match="is a link out of its folder, which is not followed"):
            read_within(folder / name, folder, 100)


@POSIX
def test_a_folder_that_is_reached_by_a_link_is_a_folder(folder: Path) -> None:
    """The runs may well lie on another disk; only what is in a checkpoint is a stranger's."""
    (folder.parent / "alias").symlink_to(folder, target_is_directory=True)
    assert read_within(folder.parent / "alias/f", folder.parent / "alias", 100) == b"text"


@POSIX
@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("pipe", "is not a regular file"),
        ("folder", "is not a regular file"),
        ("socket", "cannot be read|is not a regular file"),
        ("circle", "cannot be read|link out"),
        ("nothing", "cannot be read: No such file"),
        ("dangling", "cannot be read: No such file"),
        ("name too long", "cannot be read"),
    ],
)
def test_what_is_no_regular_file_is_refused_at_once(folder: Path, kind: str, says: str) -> None:
    import socket

    path = folder / ("x" * 5000 if kind == "name too long" else "x\n")
    makers: dict[str, Any] = {
        "pipe": lambda: os.mkfifo(path),
        "folder": path.mkdir,
        "circle": lambda: path.symlink_to(path.name),
        "dangling": lambda: path.symlink_to("nowhere"),
    }
    makers.get(kind, lambda: None)()
    with socket.socket(socket.AF_UNIX) as unix, within(seconds=2):
        if kind == "socket":
            unix.bind(os.path.relpath(path))
        with pytest.raises(UserError, match=says) as error:
            open_within(path, folder)
    assert "\n" not in str(error.value)


def test_no_more_is_read_than_allowed(folder: Path) -> None:
    """A file of holes costs a stranger nothing and takes all memory to read."""
    assert read_within(folder / "f", folder, 4) == b"text"
    with pytest.raises(UserError, match="is larger than the 3 bytes that such a file can have"):
        read_within(folder / "f", folder, 3)
    with open(folder / "holes", "wb") as file:
        file.truncate(1 << 40)
    started = time.perf_counter()
    with pytest.raises(UserError, match="is larger than the 1,048,576 bytes"):
        read_within(folder / "holes", folder, 1 << 20)
    assert time.perf_counter() - started < 1


def test_text_is_utf_8_with_or_without_a_mark_and_nothing_else(folder: Path) -> None:
    (folder / "f").write_bytes("\ufeffläuft\r\n".encode())
    assert read_text_within(folder / "f", folder, 100) == "läuft\r\n"
    (folder / "f").write_bytes(b"\xff")
    with pytest.raises(UserError, match=r"f is not UTF-8 text: .*0xff"):
        read_text_within(folder / "f", folder, 100)


@pytest.mark.parametrize("size", [0, 1, files.BLOCK - 1, files.BLOCK, 2 * files.BLOCK + 1])
def test_a_hash_is_that_of_all_that_is_left_to_read(size: int) -> None:
    content = os.urandom(size)
    assert sha256(io.BytesIO(content)) == hashlib.sha256(content).hexdigest()


def test_what_killed_processes_left_is_removed_after_a_day(tmp_path: Path) -> None:
    for name, days in (("part-1", 2), ("part-2", 0.9), ("other", 2)):
        (tmp_path / name).write_text("x")
        os.utime(tmp_path / name, (time.time() - days * 86_400,) * 2)
    (tmp_path / "part-3").mkdir()
    (tmp_path / "part-3/file").write_text("x")
    os.utime(tmp_path / "part-3", (time.time() - 2 * 86_400,) * 2)
    remove_abandoned(tmp_path, "part-*")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "part-2"]
