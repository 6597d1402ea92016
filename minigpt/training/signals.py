"""What a terminal does to a command: it asks it to end, and it may close before that has ended."""

import errno
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

SIGHUP = getattr(signal, "SIGHUP", None)  # Windows has none
GONE = {errno.EPIPE, errno.EIO, errno.ENXIO}
"""Errors of writing to a pipe that nobody reads, or to a terminal that was closed."""


def _ending() -> list[int]:
    """Return the signals by which something asks a process to end. Started by nohup, it is to ignore SIGHUP."""
    return [signal.SIGTERM, *([SIGHUP] if SIGHUP and signal.getsignal(SIGHUP) != signal.SIG_IGN else [])]


def _handle(numbers: Sequence[int], handler: Any) -> dict[int, Any]:
    """Set the handler of these signals where that is possible; return the handlers before."""
    is_main = threading.current_thread() is threading.main_thread()
    return {number: signal.signal(number, handler) for number in numbers} if is_main else {}


@contextmanager
def signals_as_exit() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise SystemExit within the block, so that what it began is undone, as Ctrl-C does."""

    def end(number: int, frame: FrameType | None) -> None:
        sys.exit(128 + number)

    previous = _handle(_ending(), end)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


class Interrupts:
    """Notes the first SIGINT, SIGTERM or SIGHUP in `signal` for the loop to see; a second ends the process at once.

    A SIGHUP does not count as one of the two: of a terminal that closes, the shell and the system both send it, and a
    logout sends it before or after a SIGTERM.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self.previous: dict[int, Any] = {}

    def __enter__(self) -> "Interrupts":
        self.previous = _handle([signal.SIGINT, *_ending()], self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.previous.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal in (None, SIGHUP):
            self.signal = number
        if number == signal.SIGINT and os.isatty(2):  # written past what a line may be in the middle of
            with ignore_broken_stderr():
                os.write(2, b"\nsaving after this step; Ctrl-C again ends without that\n")
        for known in self.previous:
            if known == SIGHUP:
                signal.signal(known, signal.SIG_IGN)
            elif number != SIGHUP:
                signal.signal(known, signal.SIG_DFL)


@contextmanager
def ignore_broken_stderr() -> Iterator[None]:
    """Let nothing end because a line to stderr fails: nobody may be there to read it, or a disk may be full."""
    try:
        yield
    except OSError as error:
        if error.errno in GONE and sys.stderr.fileno() == 2:  # nor is anybody there for the lines to come
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, 2)
            os.close(nowhere)
