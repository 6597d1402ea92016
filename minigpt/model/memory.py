"""How much memory is free, how much training needs, and what to do if it does not fit.

Nothing is refused in advance on a system that does not report its free memory.
"""

import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from minigpt.config.schema import RunConfig
from minigpt.errors import InsufficientMemoryError

SPARING = 0.8
"""Share of the free memory that a suggested micro-batch fills at most."""
SIGNS = ("can't allocate memory", "not enough memory", "out of memory")
"""What PyTorch's errors say if memory runs out."""


def free_memory_bytes(device: str) -> int | None:
    """Return the free memory of a device, or None if the system does not report it."""
    if torch.device(device).type == "cuda":
        return int(torch.cuda.mem_get_info(torch.device(device))[0])
    if device != "cpu" or sys.platform != "linux":
        return None
    available = re.search(r"MemAvailable:\s+(\d+)", Path("/proc/meminfo").read_text(encoding="ascii"))
    free = [int(available[1]) * 1024] if available else []
    try:  # the limit of a container, less the memory that the system cannot reclaim
        limit, stat = (Path(f"/sys/fs/cgroup/memory.{name}").read_text(encoding="ascii") for name in ("max", "stat"))
        free.append(int(limit) - int(stat.split()[1]))  # memory.stat begins with "anon BYTES"
    except (OSError, ValueError):  # no container, or one with the limit "max"
        pass
    return min(free, default=None)


def peak_memory(device: str = "cpu") -> int | None:
    """Return the peak memory in bytes: on the GPU, else of this process. None if the system does not report it."""
    if torch.device(device).type == "cuda":
        return torch.cuda.max_memory_allocated(torch.device(device))
    status = Path("/proc/self/status")
    if status.is_file():  # getrusage would start at the peak of the parent process
        peak = re.search(r"VmHWM:\s+(\d+)", status.read_text(encoding="ascii", errors="replace"))
        return int(peak[1]) * 1024 if peak else None
    if sys.platform == "win32":
        return None
    import resource

    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used if sys.platform == "darwin" else used * 1024


def check_model(parameters: int, device: str, has_average: bool) -> None:
    """Check that weights, gradients and averages fit into this machine's memory.

    With a GPU, count only the averages, because saving a checkpoint copies them to this machine.

    Raises:
        InsufficientMemoryError: They do not fit.
    """
    averages = 3 if has_average else 2  # the optimizer's two, and that of the weights
    needed, free = 4 * parameters * (averages + 2 * (device == "cpu")), free_memory_bytes("cpu")
    if free is not None and needed > free:
        what = f"training a model of {parameters:,} parameters"
        raise InsufficientMemoryError(f"{what} needs about {needed / 1e9:.1f} GB; {free / 1e9:.1f} GB are free")


def check_batch(
    config: RunConfig, device: str, fixed: int, loss: Callable[[], Tensor], weights: Iterable[Tensor]
) -> None:
    """Check that a micro-batch fits beside `fixed` more bytes. `loss` computes the loss of one sequence.

    Raises:
        InsufficientMemoryError: It does not fit. The error suggests a smaller micro-batch.
    """
    free = free_memory_bytes(device)
    if free is None:
        return
    each, micro = backward_bytes(loss, weights), config.train.sequences_at_once
    needed = fixed + micro * each
    if needed > free:
        problem = f"training with {micro} sequences at once needs about {needed / 1e9:.1f} GB"
        settings = _smaller_micro_batch(config, int((SPARING * free - fixed) // each))
        raise InsufficientMemoryError(f"{problem}; {free / 1e9:.1f} GB are free", settings=settings)


def backward_bytes(compute: Callable[[], Tensor], weights: Iterable[Tensor]) -> int:
    """Return the memory that `compute` keeps for its backward pass, without `weights`. It is freed at once here."""
    kept: dict[StorageWeakRef, int] = {}  # a weak reference tells storages apart that take the same memory in turn

    def note(tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        kept[StorageWeakRef(storage)] = storage.nbytes()

    with torch.autograd.graph.saved_tensors_hooks(note, lambda _: torch.empty(0)):
        compute()
    own = {StorageWeakRef(weight.untyped_storage()) for weight in weights}
    return sum(size for storage, size in kept.items() if storage not in own)


def as_memory_error(error: Exception, config: RunConfig | None = None) -> InsufficientMemoryError | None:
    """Return an error that says memory ran out, with a smaller micro-batch for `config`; None for other errors."""
    if not isinstance(error, MemoryError | torch.OutOfMemoryError) and not any(sign in str(error) for sign in SIGNS):
        return None
    if config is None:
        return InsufficientMemoryError("out of memory")
    micro = config.train.sequences_at_once
    problem = f"out of memory with {micro} sequence{'s' * (micro > 1)} at once"
    return InsufficientMemoryError(problem, settings=_smaller_micro_batch(config, micro // 2))


def _smaller_micro_batch(config: RunConfig, most: int) -> tuple[str, ...]:
    """Return the setting of the largest micro-batch of at most `most` sequences that divides the batch."""
    batch = config.train.batch_size
    sizes = (size for size in range(min(most, batch - 1), 0, -1) if batch % size == 0)
    return tuple(f"train.micro_batch_size={size}" for size in sizes)[:1]
