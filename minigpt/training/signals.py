"""Signals that ask a process to end, and a terminal that may close before it does."""

import errno
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

SIGHUP = getattr(signal, "SIGHUP", None)  # Windows has none
CLOSED = {errno.EPIPE, errno.EIO, errno.ENXIO}
"""Errors of writing to a pipe or a terminal that was closed."""


class Interrupts:
    """Note the first SIGINT, SIGTERM or SIGHUP in `signal`, for the loop to see. A second one ends the process.

    A SIGHUP does not count as the second: when a terminal closes, both the shell and the system send one, and a
    logout sends one before or after a SIGTERM.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self.previous: dict[int, Any] = {}

    def __enter__(self) -> "Interrupts":
        if threading.current_thread() is threading.main_thread():  # no other thread may set handlers
            signals = [signal.SIGINT, signal.SIGTERM]
            if SIGHUP and signal.getsignal(SIGHUP) != signal.SIG_IGN:  # nohup ignores it
                signals.append(SIGHUP)
            self.previous = {number: signal.signal(number, self._note) for number in signals}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.previous.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal in (None, SIGHUP):
            self.signal = number
        if number == signal.SIGINT and os.isatty(2):  # not through sys.stderr, which may be in the middle of a line
            with ignore_broken_stderr():
                os.write(2, b"\nsaving after this step; press Ctrl-C again to quit without saving\n")
        for known in self.previous:
            if known == SIGHUP:
                signal.signal(known, signal.SIG_IGN)
            elif number != SIGHUP:
                signal.signal(known, signal.SIG_DFL)


@contextmanager
def ignore_broken_stderr() -> Iterator[None]:
    """Within the block, ignore that a line cannot be written: the reader may be gone, or a disk full."""
    try:
        yield
    except OSError as error:
        if error.errno in CLOSED and sys.stderr.fileno() == 2:  # later lines have no reader either
            devnull = os.open(os.devnull, os.O_WRONLY)
            os.dup2(devnull, 2)
            os.close(devnull)
