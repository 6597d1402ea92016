"""Sides for test_bench.py. They run in new processes, so this module imports little."""

import os
import signal
import time

from bench.report import Round
from bench.sides import Log, Workload

from minigpt.errors import UserError


def working(seconds: float, log: Log) -> Workload:
    """Build a side that records when it worked."""

    def measure() -> Round:
        began = time.monotonic()
        time.sleep(seconds)
        return {"began": began, "ended": time.monotonic(), "megabytes_per_second": 1 / seconds}

    log("ready")
    return measure, {"about": "a test", "pid": os.getpid()}


def failing(how: str, log: Log) -> Workload:
    """Build a side that fails in its first round."""

    def measure() -> Round:
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "memory":
            import torch

            torch.empty(1 << 60, dtype=torch.uint8)
        raise {"user": UserError("no such text"), "disk": OSError(28, "full", "a.bin")}.get(how, KeyError("a bug"))

    return measure, {"about": "a test"}


def waiting(log: Log) -> Workload:
    """Build a side that waits for a request."""
    return dict, {}
