"""The number of this process among the processes that train together, and its share of the machine.

Does not import torch.
"""

import os
import re
from contextlib import suppress
from pathlib import Path

SPIN_COUNT = "10000"
"""How often an OpenMP thread on Linux looks for work before it sleeps. A higher count takes
CPU time from other threads on a busy machine."""


def set_variables() -> None:
    """Set variables for PyTorch, before it reads them at its import or on a GPU, unless the user has set them."""
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # for deterministic matrix multiplications


def is_one_of_several() -> bool:
    """Return whether this process trains with others: torchrun, or a script of Slurm or MPI, has set WORLD_SIZE."""
    return os.environ.get("WORLD_SIZE", "") not in ("", "1")


def rank() -> int:
    """Return the number of this process among the processes that train together. Process 0 is the main process."""
    number = os.environ.get("RANK", "")
    return int(number) if is_one_of_several() and number.isdecimal() else 0


def available_cores() -> int:
    """Return the number of cores that this process may use. A part of a core counts as one."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for group in _control_groups():
        with suppress(OSError, ValueError):  # no limit
            quota, period = map(int, (group / "cpu.max").read_text(encoding="ascii").split())
            cores = min(cores, -(-quota // period))
    return cores


def processes_here() -> int:
    """Return the number of processes that train together on this machine."""
    number = os.environ.get("LOCAL_WORLD_SIZE", "")
    return max(1, int(number)) if is_one_of_several() and number.isdecimal() else 1


def free_memory() -> int | None:
    """Return the free memory in bytes, or None if the system does not report it."""
    free = bytes_in("/proc/meminfo", "MemAvailable")
    for group in _control_groups():  # the limit of a container, less the memory that the system cannot reclaim
        with suppress(OSError, ValueError):  # no limit
            limit, stat = ((group / f"memory.{name}").read_text(encoding="ascii") for name in ("max", "stat"))
            free = free and min(free, int(limit) - int(stat.split()[1]))  # memory.stat begins with "anon BYTES"
    return free


def _control_groups() -> list[Path]:
    """Return the folders of this process's control group (cgroup v2) and of its parents. Each can have limits."""
    group = re.search("^0::/(.*)", system_table("/proc/self/cgroup"), re.MULTILINE)
    path = Path("/sys/fs/cgroup", group[1] if group else "")
    return [path, *path.parents][:-3]  # without /sys/fs, /sys and /


def system_table(path: str) -> str:
    """Return the content of a /proc file. Return "" if it cannot be read, as on macOS and in some sandboxes."""
    try:
        return Path(path).read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""


def bytes_in(table: str, name: str) -> int | None:
    """Return the bytes in an entry of a /proc file, such as "VmHWM:  1234 kB", or None if it is missing."""
    match = re.search(rf"{name}:\s+(\d+)", system_table(table))
    return int(match[1]) * 1024 if match else None
