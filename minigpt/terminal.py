"""What a terminal does to a command: it asks it to end, and it may close before that has ended."""

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
GONE = {errno.EPIPE, errno.EIO, errno.ENXIO}
"""Errors of writing to a pipe that nobody reads, or to a terminal that was closed."""


class Interrupts:
    """Notes the first SIGINT, SIGTERM or SIGHUP in `signal` for the loop to see; a second ends the process at once.

    A SIGHUP does not count as one of the two: of a terminal that closes, the shell and the system both send it, and a
    logout sends it before or after a SIGTERM. Where the process was started to ignore it, as by nohup, it still does.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self.previous: dict[int, Any] = {}

    def __enter__(self) -> "Interrupts":
        numbers = [signal.SIGINT, signal.SIGTERM]
        if SIGHUP and signal.getsignal(SIGHUP) != signal.SIG_IGN:
            numbers.append(SIGHUP)
        if threading.current_thread() is threading.main_thread():
            self.previous = {number: signal.signal(number, self._note) for number in numbers}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.previous.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal in (None, SIGHUP):
            self.signal = number
        if number == signal.SIGINT and os.isatty(2):  # written past what a line may be in the middle of
            with heard_or_not():
                os.write(2, b"\nsaving after this step; Ctrl-C again ends without that\n")
        for known in self.previous:
            if known == SIGHUP:
                signal.signal(known, signal.SIG_IGN)
            elif number != SIGHUP:
                signal.signal(known, signal.SIG_DFL)


@contextmanager
def heard_or_not() -> Iterator[None]:
    """Let nothing end because a line to stderr fails: nobody may be there to read it, or a disk may be full."""
    try:
        yield
    except OSError as error:
        if error.errno in GONE and sys.stderr.fileno() == 2:  # nor is anybody there for the lines to come
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, 2)
            os.close(nowhere)
