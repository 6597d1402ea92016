"""Which of the processes that train together this one is, and its share of the machine. Does not import torch."""

import os


def is_one_of_several() -> bool:
    """Return whether this process trains with others: torchrun, or a script of Slurm or MPI, has set WORLD_SIZE."""
    return os.environ.get("WORLD_SIZE", "") not in ("", "1")


def rank() -> int:
    """Return the number of this process among those that train together. Process 0 is the main one."""
    number = os.environ.get("RANK", "")
    return int(number) if is_one_of_several() and number.isdecimal() else 0


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
