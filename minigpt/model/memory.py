"""What fits into memory: estimated before it is taken, and of a batch told what would fit.

Where the system does not say what is free, nothing is refused beforehand.
"""

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from minigpt.config.schema import ModelConfig, RunConfig
from minigpt.errors import InsufficientMemoryError, UserError

MEASURED = 1024
"""The longest context that is tried out to learn what one sequence takes."""
SPARING = 0.8
"""The share of the free memory that an advised batch fills, where one so small there is."""


# --- what is free, what is taken ---------------------------------------------------------------------


def free_memory_bytes(device: str) -> int | None:
    """Return how much memory can still be had on this device; None where the system does not say."""
    if torch.device(device).type == "cuda":
        return int(torch.cuda.mem_get_info(torch.device(device))[0])
    if device != "cpu" or sys.platform != "linux":
        return None
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    free = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    container = _free_in_container(Path("/sys/fs/cgroup"))
    return min(free if container is None else [*free, container], default=None)


def _free_in_container(group: Path) -> int | None:
    """Return how much memory a control group may still take: what it gives back when asked counts as free."""
    limit, used, kinds = (group / f"memory.{name}" for name in ("max", "current", "stat"))
    if not (limit.is_file() and used.is_file() and limit.read_text().strip().isdigit()):
        return None
    sizes = dict(line.split() for line in kinds.read_text().splitlines()) if kinds.is_file() else {}
    given_back = sum(int(sizes.get(kind, 0)) for kind in ("active_file", "inactive_file", "slab_reclaimable"))
    return int(limit.read_text()) - int(used.read_text()) + given_back


def backward_bytes(compute: Callable[[], Tensor], weights: Iterable[Tensor]) -> int:
    """Return how much memory `compute` keeps for its backward pass, `weights` not counted."""
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        compute()
    own = {weight.untyped_storage().data_ptr() for weight in weights}
    return sum(size for place, size in kept.items() if place not in own)


def is_out_of_memory(error: Exception) -> bool:
    """Return whether `error` was raised because memory ran out, on any device."""
    text = str(error)
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or any(
        sign in text for sign in ("can't allocate memory", "not enough memory", "out of memory")
    )


def peak_memory() -> int | None:
    """Return the most memory that this process had resident, in bytes; None where the system does not say."""
    status = Path("/proc/self/status")
    if status.is_file():  # getrusage would begin with what the process had that started this one
        peak = re.search(r"VmHWM:\s+(\d+)", status.read_text(encoding="ascii", errors="replace"))
        return int(peak[1]) * 1024 if peak else None
    if sys.platform == "win32":
        return None
    import resource

    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used if sys.platform == "darwin" else used * 1024


# --- loading and drawing -----------------------------------------------------------------------------


def check_loading(what: str, parameters: int, shape: ModelConfig) -> None:
    """Raise InsufficientMemoryError when the file, its tensors and the model do not fit into memory."""
    # And for angles and what is made of them, mostly in float64.
    width = shape.n_embd if shape.position == "sinusoidal" else shape.head_size
    needed, free = 12 * parameters + 24 * shape.context * width, free_memory_bytes("cpu")
    if free is not None and needed > free:
        raise InsufficientMemoryError(f"{what} needs {needed / 1e9:.1f} GB to load, {free / 1e9:.1f} GB are free")


def check_sampling(shape: ModelConfig, num_samples: int, length: int, device: str) -> None:
    """Raise UserError when there is no memory for so many samples of so many tokens."""
    each = 4 * (2 * shape.n_layer * shape.n_embd * shape.context + 3 * length)  # keys and values; tokens, and some room
    needed, free = num_samples * each, free_memory_bytes(device)
    if free is not None and needed > free:
        raise UserError(f"{num_samples} samples need about {needed / 1e9:.0f} GB, {free / 1e9:.0f} GB are free")


# --- training ----------------------------------------------------------------------------------------


def check_training(parameters: int, device: str, has_average: bool) -> None:
    """Raise UserError when weights, gradients and averages alone exceed this machine's memory.

    On a CPU these are the weights, their gradients, the optimizer's two averages and, with `ema`, the weights'. Where a
    GPU trains, only the averages are counted, which a save copies here.
    """
    averages = 3 if has_average else 2
    needed, free = 4 * parameters * (averages + 2 * (device == "cpu")), free_memory_bytes("cpu")
    if free is not None and needed > free:
        raise UserError(
            f"a model of {parameters:,} parameters needs about {needed / 1e9:.1f} GB to train, {free / 1e9:.1f} GB are "
            "free; make model.n_embd or model.n_layer smaller"
        )


def check_batch(
    config: RunConfig, device: str, fixed: int, loss: Callable[[int], Tensor], weights: Sequence[Tensor]
) -> None:
    """Raise UserError for a batch that cannot fit beside `fixed` bytes that are still to be taken, and say what would.

    `loss` computes that of one sequence of a length: what it keeps for its backward pass is what each takes.
    """
    free = free_memory_bytes(device)
    if free is None:
        return
    train, each = config.train, sequence_bytes(loss, weights, config.model.context)
    needed = fixed + train.sequences_at_once * each
    if needed <= free:
        return
    sparing, most = (int((share * free - fixed) // each) for share in (SPARING, 1.0))
    fitting = _micro_batch_size(train.batch_size, sparing) or _micro_batch_size(train.batch_size, most)
    problem = f"training needs about {needed / 1e9:.1f} GB, {free / 1e9:.1f} GB are free"
    if fitting is None:
        raise UserError(f"{problem}; not even one sequence fits: make the model or model.context smaller")
    raise UserError(f"{problem}; --set train.micro_batch_size={fitting} fits and gives {_same_result(config)}")


def sequence_bytes(loss: Callable[[int], Tensor], weights: Sequence[Tensor], context: int) -> int:
    """Return how much memory the loss of one sequence of `context` tokens keeps for its backward pass.

    What is kept grows with the length and, of attention's weights, with its square: beyond MEASURED tokens it is read
    off the parabola through three shorter lengths, for trying it out might take all memory there is.
    """
    if context <= MEASURED:
        return backward_bytes(lambda: loss(context), weights)
    lengths = (MEASURED // 4, MEASURED // 2, MEASURED)
    kept = [backward_bytes(partial(loss, length), weights) for length in lengths]
    return int(np.polyval(np.polyfit(lengths, kept, 2), context))


@contextmanager
def advising_fewer(config: RunConfig) -> Iterator[None]:
    """Advise fewer sequences at once where memory runs out within the block. Raises UserError."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        micro = config.train.sequences_at_once
        fitting = _micro_batch_size(config.train.batch_size, micro // 2)
        fewer = f"--set train.micro_batch_size={fitting}, which gives {_same_result(config)}" if fitting else ""
        at_once = "1 sequence" if micro == 1 else f"{micro} sequences"
        raise UserError(f"out of memory with {at_once} at once; try {fewer or 'a smaller model'}") from error


def _micro_batch_size(batch_size: int, most: int) -> int | None:
    """Return the largest part of a batch that divides it, of at most `most` sequences; None where there is none."""
    return next((m for m in range(min(most, batch_size - 1), 0, -1) if batch_size % m == 0), None)


def _same_result(config: RunConfig) -> str:
    """Return in words what a smaller micro-batch gives."""
    return f"the same result{', but for the masks of dropout' if config.model.dropout else ''}"
