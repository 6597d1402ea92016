"""How PyTorch's threads wait for each other on Linux: spinning on an idle machine, asleep on a busy machine.

Threads meet at the end of each parallel loop. Spinning there starts the next loop at once. But if another program has
the core of the last thread, spinning takes the time that this thread needs, and a step can take 27 times as long. GCC's
OpenMP spins little if it manages more threads than the machine has cores
(https://gcc.gnu.org/onlinedocs/libgomp/GOMP_005fSPINCOUNT.html). So while the machine is busy, this module keeps a
second team of idle threads. No result changes.
"""

import os
import sys
import threading
import time
from functools import cache
from pathlib import Path

import torch

from minigpt.paths import names_in
from minigpt.world import SPIN_COUNT, system_table

PERIOD = 0.25
"""Seconds between two measurements of the load."""
BUSY = 0.2
"""The machine is busy if the waits of this process's threads for a core add up to this share of the time."""
TASKS = Path("/proc/self/task")
IS_BUSY = threading.Event()
"""Set while other programs need the cores of this process, as far as `adapt_to_load` knows."""


@cache
def adapt_to_load() -> None:
    """Let threads sleep while the machine is busy, from now on, unless the user has set OpenMP's variables."""
    is_default = "OMP_WAIT_POLICY" not in os.environ and os.environ.get("GOMP_SPINCOUNT") == SPIN_COUNT
    if sys.platform == "linux" and is_default:
        threading.Thread(target=_watch, name="load", daemon=True).start()


def _watch() -> None:
    waited, at = seconds_waited(), time.monotonic()
    while True:
        time.sleep(PERIOD)
        before, since = waited, at
        waited, at = seconds_waited(), time.monotonic()
        if waited - before < BUSY * (at - since):
            IS_BUSY.clear()
        elif not IS_BUSY.is_set():
            IS_BUSY.set()
            threading.Thread(target=_keep_team, name="second team", daemon=True).start()


def _keep_team() -> None:
    """Own as many threads as there are cores while the machine is busy. They end with this thread."""
    cores = os.cpu_count() or 1
    torch.set_num_threads(cores)
    torch.zeros(cores << 16).add_(1)  # large enough for all threads
    while IS_BUSY.is_set():
        time.sleep(PERIOD)


def seconds_waited() -> float:
    """Return the total seconds for which the threads of this process waited for a core. 0 if unknown."""
    total = 0
    for task in names_in(TASKS):
        statistics = system_table(f"{TASKS}/{task}/schedstat").split()  # none if the thread has ended
        total += int(statistics[1]) if statistics else 0  # nanoseconds on a core, nanoseconds waiting for one, slices
    return total / 1e9
