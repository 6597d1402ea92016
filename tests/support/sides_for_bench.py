"""Sides for test_bench.py. They start in processes of their own, which is why little is imported here."""

import os
import signal
import time

from minigpt.bench.sides import Built, Round, Say
from minigpt.errors import UserError


def working(seconds: float, say: Say) -> Built:
    """A side that notes when it worked."""

    def measure() -> Round:
        began = time.monotonic()
        time.sleep(seconds)
        return {"began": began, "ended": time.monotonic(), "megabytes_per_second": 1 / seconds}

    say("ready")
    return measure, {"about": "a test", "pid": os.getpid()}


def failing(how: str, say: Say) -> Built:
    def measure() -> Round:
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "memory":
            import torch

            torch.empty(1 << 60, dtype=torch.uint8)
        raise {"user": UserError("no such text"), "disk": OSError(28, "full", "a.bin")}.get(how, KeyError("a bug"))

    return measure, {"about": "a test"}


def napping(say: Say) -> Built:
    return lambda: time.sleep(60) or {}, {"pid": os.getpid()}
