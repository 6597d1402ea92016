"""What a terminal does to a command: it asks it to end, and it may close before that has ended."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

SIGHUP = getattr(signal, "SIGHUP", None)  # Windows has none


class Interrupts:
    """Notes the first SIGINT, SIGTERM or SIGHUP in `signal` for the loop to see; the second ends the process at once.

    A SIGHUP that whoever started the process had it ignore, as nohup does, stays ignored.
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
            signal.signal(known, signal.SIG_DFL)
        if number == SIGHUP:  # of a closed terminal, the shell and the system both send it
            signal.signal(number, signal.SIG_IGN)


@contextmanager
def heard_or_not() -> Iterator[None]:
    """Let nothing end because a line to stderr fails: the terminal was closed, or a reader such as `tee` has ended."""
    try:
        yield
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # where all further lines go as well
