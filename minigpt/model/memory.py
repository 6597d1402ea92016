"""The memory of training: what a run needs, what is free, and what to do if it does not fit.

`training_memory` estimates a run's need. The checks before training and `train --dry-run` add up its parts, although a
step may not hold them all at the same time. The checks pass if the system does not report its free memory.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from minigpt.config.schema import RunConfig
from minigpt.errors import InsufficientMemoryError
from minigpt.model.size import count_parameters
from minigpt.world import bytes_in, free_memory, processes_here

SPARING = 0.8
"""Maximum fraction of the free memory that a run fills with a suggested micro-batch."""
HEAP = 1.35
"""Memory of a CPU process per byte of activations.

It includes temporary tensors, and holes in the heap (glibc 2.36).
"""
SIGNS = ("can't allocate memory", "not enough memory", "out of memory")
"""Parts of PyTorch's error messages when memory runs out."""


@dataclass(frozen=True)
class Memory:
    """The memory of one process, in bytes."""

    program: int
    """Python, PyTorch and its libraries, on a CPU."""
    weights: int
    gradients: int
    optimizer: int
    """AdamW has two moving averages; Muon one, and its updates."""
    exchange: int
    """The buffer for sums over processes."""
    activations: int
    """What the forward pass of a micro-batch keeps for the backward pass, with the heap's holes."""

    @property
    def total(self) -> int:
        return sum(getattr(self, part.name) for part in fields(Memory))

    def micro_batch_within(self, config: RunConfig, free: int) -> int:
        """Return the largest micro-batch of `config` that leaves a fifth of `free` bytes, or 0."""
        sequence_bytes = max(1, self.activations // config.train.sequences_at_once)
        return _largest_micro_batch(config, int(SPARING * free - self.total + self.activations) // sequence_bytes)


def training_memory(
    config: RunConfig,
    vocab_size: int,
    device: str,
    sequence_bytes: int = 0,
    *,
    processes: int = 1,
    program: int = 0,
) -> Memory:
    """Return what each process needs if the activations of a sequence take `sequence_bytes`."""
    weights, shards = 4 * count_parameters(config.model, vocab_size), config.train.shards // processes
    gradients = weights * (1 + math.ceil(math.log2(shards)))  # sums for each level of a tree, and the newest gradients
    activations = config.train.sequences_at_once * int(sequence_bytes * _heap(device))
    return Memory(program, weights, gradients, 2 * weights, weights if processes > 1 else 0, activations)


def free_memory_bytes(device: str) -> int | None:
    """Return a device's free memory for this process, or None if the system does not report it.

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


def check_memory(what: str, memory: Memory, device: str, config: RunConfig) -> str:
    """Return a warning if a device may have less memory free than a run needs, or "".

    Raise InsufficientMemoryError if the tensors alone do not fit. Suggest a smaller micro-batch, if one is enough.
    """
    free = free_memory_bytes(device)
    if free is None or memory.total <= free:
        return ""
    problem = f"{what} needs about {memory.total / 1e9:.1f} GB; {free / 1e9:.1f} GB are free"
    size = memory.micro_batch_within(config, free) if memory.activations else 0
    settings = (f"train.micro_batch_size={size}",) if size else ()
    if memory.total - memory.activations + int(memory.activations / _heap(device)) > free:
        raise InsufficientMemoryError(problem, settings=settings)
    return f"{problem}: memory may run out{''.join(f'; {setting} avoids that' for setting in settings)}"


def _heap(device: str) -> float:
    """Return the memory that a device needs per byte of activations."""
    return HEAP if device == "cpu" else 1


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
    size = _largest_micro_batch(config, config.train.sequences_at_once // 2) if config else 0
    return InsufficientMemoryError("out of memory", settings=(f"train.micro_batch_size={size}",) if size else ())


def _largest_micro_batch(config: RunConfig, most: int) -> int:
    """Return the largest micro-batch of at most `most` sequences that divides a shard, or 0."""
    shard = config.train.batch_size // config.train.shards
    return next((size for size in range(min(most, shard), 0, -1) if shard % size == 0), 0)
