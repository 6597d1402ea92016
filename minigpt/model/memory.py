"""Free memory, the checks before training, and what to do if something does not fit.

The checks start at once, and pass if the system does not report its free memory. They add up parts that a step may not
hold at the same time, so they may refuse a run that barely fits. `minigpt plan` counts the peak, with temporary tensors
(`training/step_cost.py`), which takes seconds.
"""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from minigpt.config.schema import RunConfig
from minigpt.errors import InsufficientMemoryError
from minigpt.world import bytes_in, free_memory, processes_here

SPARING = 0.8
"""Maximum fraction of the free memory that a suggested micro-batch fills."""
SIGNS = ("can't allocate memory", "not enough memory", "out of memory")
"""Parts of PyTorch's error messages when memory runs out."""


def free_memory_bytes(device: str) -> int | None:
    """Return the free memory of a device, or None if the system does not report it.

    Processes that train together share the memory of their machine, and have a GPU each.
    """
    if torch.device(device).type == "cuda":
        torch.cuda.empty_cache()  # PyTorch keeps freed memory, which counts as used
        return int(torch.cuda.mem_get_info(torch.device(device))[0])
    free = free_memory() if device == "cpu" else None
    return free and free // processes_here()


def peak_memory(device: str = "cpu") -> int | None:
    """Return the peak memory in bytes: on the GPU, else of this process. None if the system does not report it."""
    if torch.device(device).type == "cuda":
        return torch.cuda.max_memory_allocated(torch.device(device))
    return bytes_in("/proc/self/status", "VmHWM")


def check_model(parameters: int, device: str, has_average: bool) -> None:
    """Check that the weights, their gradients, two copies for the optimizer and the EMA fit in memory.

    Raises:
        InsufficientMemoryError: The model does not fit.
    """
    needed = 4 * parameters * (5 if has_average else 4)  # AdamW has two moving averages; Muon one, and its updates
    _check(f"training a model of {parameters:,} parameters", needed, free_memory_bytes(device))


def check_batch(config: RunConfig, device: str, fixed: int, each: int) -> None:
    """Check that a micro-batch of sequences of `each` bytes fits beside `fixed` bytes.

    Raises:
        InsufficientMemoryError: The micro-batch does not fit. The error suggests a smaller micro-batch.
    """
    free, micro = free_memory_bytes(device), config.train.sequences_at_once
    suggested = _smaller_micro_batch(config, int((SPARING * (free or 0) - fixed) // each))
    _check(f"training with {micro} sequences at once", fixed + micro * each, free, suggested)


def _check(what: str, needed: int, free: int | None, settings: tuple[str, ...] = ()) -> None:
    if free is not None and needed > free:
        problem = f"{what} needs about {needed / 1e9:.1f} GB; {free / 1e9:.1f} GB are free"
        raise InsufficientMemoryError(problem, settings=settings)


def backward_bytes(compute: Callable[[], Tensor], weights: Iterable[Tensor]) -> int:
    """Return the memory that `compute` keeps for its backward pass, excluding `weights`. Free it at once."""
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
    settings = _smaller_micro_batch(config, config.train.sequences_at_once // 2) if config else ()
    return InsufficientMemoryError("out of memory", settings=settings)


def _smaller_micro_batch(config: RunConfig, most: int) -> tuple[str, ...]:
    """Return the setting of the largest micro-batch of at most `most` sequences, fewer than a shard."""
    size = largest_micro_batch(config, min(most, config.train.batch_size // config.train.shards - 1))
    return (f"train.micro_batch_size={size}",) if size else ()


def largest_micro_batch(config: RunConfig, most: int) -> int:
    """Return the largest micro-batch of at most `most` sequences that divides a shard, or 0."""
    shard = config.train.batch_size // config.train.shards
    return next((size for size in range(min(most, shard), 0, -1) if shard % size == 0), 0)
