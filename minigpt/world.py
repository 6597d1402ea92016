"""The number of this process among the processes that train together, and its share of the machine.

Does not import torch.
"""

import os
import re
from pathlib import Path


def is_one_of_several() -> bool:
    """Return whether this process trains with others: torchrun, or a script of Slurm or MPI, has set WORLD_SIZE."""
    return os.environ.get("WORLD_SIZE", "") not in ("", "1")


def rank() -> int:
    """Return the number of this process among the processes that train together. Process 0 is the main process."""
    number = os.environ.get("RANK", "")
    return int(number) if is_one_of_several() and number.isdecimal() else 0


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processes_here() -> int:
    """Return the number of processes that train together on this machine."""
    number = os.environ.get("LOCAL_WORLD_SIZE", "")
    return max(1, int(number)) if is_one_of_several() and number.isdecimal() else 1


def free_memory() -> int | None:
    """Return the free memory in bytes, or None if the system does not report it."""
    available = bytes_in("/proc/meminfo", "MemAvailable")
    try:  # the limit of a container, less the memory that the system cannot reclaim
        limit, stat = (Path(f"/sys/fs/cgroup/memory.{name}").read_text(encoding="ascii") for name in ("max", "stat"))
        return available and min(available, int(limit) - int(stat.split()[1]))  # memory.stat begins with "anon BYTES"
    except (OSError, ValueError):  # no container, or one with the limit "max"
        return available


def bytes_in(table: str, name: str) -> int | None:
    """Return the bytes in an entry of a /proc file, such as "VmHWM:  1234 kB". None if there is no such entry."""
    try:
        found = re.search(rf"{name}:\s+(\d+)", Path(table).read_text(encoding="ascii", errors="replace"))
    except OSError:  # another system, or a sandbox without /proc
        return None
    return int(found[1]) * 1024 if found else None
