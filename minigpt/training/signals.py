"""Handle signals that ask the process to end, and write to a stderr that may have no reader."""

import errno
import os
import shutil
import signal
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

SIGHUP = getattr(signal, "SIGHUP", None)  # Windows has none
PAIR = 1.0
"""Signals within this many seconds of the first belong to the same request."""
CLOSED = {errno.EPIPE, errno.EIO, errno.ENXIO}
"""Errors of writing to a pipe or a terminal that was closed."""


def interrupt(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt or SystemExit for a signal, so that the program undoes what it has begun.

    Inside an import, wait for its end: libraries may catch the exception there, or crash.
    """
    while frame and "importlib._bootstrap" not in frame.f_code.co_filename:
        frame = frame.f_back
    if frame:
        threading.Timer(0.001, raise_in_main_thread, [number]).start()
    elif number == signal.SIGINT:
        raise KeyboardInterrupt
    else:
        sys.exit(128 + number)


def raise_in_main_thread(number: int) -> None:
    """Send a signal from another thread so that it interrupts system calls of the main thread, except on Windows."""
    if hasattr(signal, "pthread_kill"):
        signal.pthread_kill(threading.main_thread().ident or 0, number)
    else:
        signal.raise_signal(number)


def handle(*numbers: int | None, by: Any = interrupt) -> dict[int, Any]:
    """Handle signals, except those that the parent process ignores, as nohup does. Return the previous handlers."""
    handled = [number for number in numbers if number and signal.getsignal(number) != signal.SIG_IGN]
    return {number: signal.signal(number, by) for number in handled}


@contextmanager
def unhandled() -> Iterator[None]:
    """Let signals end this process at once in a block that waits outside of Python, where no handler would run."""
    before = handle(signal.SIGINT, signal.SIGTERM, SIGHUP, by=signal.SIG_DFL)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Interrupts:
    """Record the first SIGINT, SIGTERM or SIGHUP in `signal`, for the loop to read. A later signal ends the process.

    Signals may come in pairs: a supervisor may send SIGINT and then SIGTERM, and when a terminal closes, both the shell
    and the system send SIGHUP. So a signal within a second of the first has no effect, and neither does a later
    SIGHUP. A logout may send SIGHUP before SIGTERM, so SIGTERM after SIGHUP counts as the first signal.

    After a signal, the handlers stay when the block ends, so the second of a pair does not interrupt the final
    output. A later signal restores and calls the previous handlers. An error of the block counts as a signal, because
    torchrun sends SIGTERM when another process has failed. Unless `is_silent`, a line says what a second Ctrl-C does.
    """

    def __init__(self, is_silent: bool = False) -> None:
        self.signal: int | None = None
        self.is_silent = is_silent
        self.noted = 0.0
        self.previous: dict[int, Any] = {}

    def __enter__(self) -> "Interrupts":
        if threading.current_thread() is threading.main_thread():  # no other thread may set handlers
            self.previous = handle(signal.SIGINT, signal.SIGTERM, SIGHUP, by=self._note)
        return self

    def adopt(self, number: int | None) -> None:
        """Record a signal that another process has received. The same request may reach this process later."""
        if number and self.signal is None:
            self.signal, self.noted = number, time.monotonic()

    def __exit__(self, error: object, *_: object) -> None:
        if error:
            self.adopt(signal.SIGTERM)
        elif self.signal is None:
            self._restore()

    def _restore(self) -> None:
        for number, handler in self.previous.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.signal is None or (self.signal, number) == (SIGHUP, signal.SIGTERM):
            self.signal, self.noted = number, now
            if number == signal.SIGINT and sys.stderr.isatty() and not self.is_silent:
                STDERR.write("\nsaving after this step; press Ctrl-C again to quit without saving\n")
        elif now >= self.noted + PAIR and number != SIGHUP:
            self._restore()
            signal.raise_signal(number)


class Stderr:
    """`sys.stderr` as a file whose writes do not fail: the reader of a pipe may be gone, or a disk full."""

    def __getattr__(self, name: str) -> Any:  # tqdm asks for the encoding and the width
        return getattr(sys.stderr, name)

    def flush(self) -> None:
        """Do nothing: `write` flushes."""

    def write(self, text: str) -> None:
        """Write `text`, or drop it."""
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except RuntimeError:  # a signal handler writes while it interrupts a write
            pass
        except OSError as error:
            if error.errno in CLOSED and sys.stderr.fileno() == 2:  # else Python fails to flush it at exit
                os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


STDERR = Stderr()
"""The stream for progress and notices."""


def word_wrapped(text: str) -> str:
    """Return a line with breaks between words, if stderr is a terminal. Lines with commands stay whole."""
    if not sys.stderr.isatty() or "minigpt " in text:
        return text
    return textwrap.fill(text, shutil.get_terminal_size().columns, break_long_words=False, break_on_hyphens=False)
