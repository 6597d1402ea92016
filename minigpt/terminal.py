"""What a terminal does to a command: it asks it to end, and it may close before that has ended."""

import errno
import os
import signal
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

    Not so a second SIGHUP: a shell and the system both send it when a terminal closes, and a logout after a SIGTERM.
    One that whoever started the process had it ignore, as nohup does, stays ignored.
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
        self.signal = number
        for known in self.previous:
            signal.signal(known, signal.SIG_IGN if known == SIGHUP else signal.SIG_DFL)


@contextmanager
def heard_or_not() -> Iterator[None]:
    """Let nothing end because a line to stderr fails: nobody may be there to read it, or a disk may be full."""
    try:
        yield
    except OSError as error:
        if error.errno in GONE:  # and so will be whoever would read the lines to come
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, 2)
            os.close(nowhere)
