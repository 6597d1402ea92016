"""Several processes that train one model, as torchrun starts them, or `ONE`.

Each process works on its shards of every batch, and gradients are summed so that the number of processes does not
change a bit. A sum of floating-point numbers depends on its order, so the order is fixed: shards are added in pairs,
pairs of shards in pairs, and so on. A process computes one subtree; sums over two processes finish the tree. Each sum
has two terms, and a + b equals b + a.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from torch import Tensor

from minigpt.config.schema import RunConfig
from minigpt.errors import ConfigError, InsufficientMemoryError, JoinError, OtherProcessError, UserError, escape, reason
from minigpt.model.memory import check_memory, training_memory
from minigpt.model.size import count_parameters
from minigpt.training.dtensors import is_dtensor, local, rows
from minigpt.training.signals import unhandled
from minigpt.world import is_one_of_several

T = TypeVar("T")
Write = Callable[[Path], None]
"""Writes files into a folder."""
JOINING, PREPARING = timedelta(minutes=5), timedelta(days=7)
"""How long a process waits for the others to start, then before training: another may be encoding a long text."""
LOST = ("gloo", "Connection closed by peer", "Connection reset by peer", "Timed out waiting")
"""Parts of the messages of PyTorch's errors that mean that another process has exited or stopped responding."""
LOST_CONTACT = "lost contact with another process: it exited or stopped responding"


class Processes:
    """The processes that train a run, seen from one process. Without arguments: a single process.

    Methods marked "collective" must be called by every process, in the same order.
    """

    def __init__(self, rank: int = 0, size: int = 1, local_rank: int | None = None) -> None:
        self.rank, self.size, self.local_rank = rank, size, local_rank
        self.group: Any = None
        self.pairs: list[Any] = []

    @property
    def is_main(self) -> bool:
        """Whether this process prints, logs and saves."""
        return self.rank == 0

    @property
    def is_exact(self) -> bool:
        """Whether `sum` gives the bits of one process."""
        return self.size == 1 or bool(self.pairs)

    # --- before training ---------------------------------------------------------------------------------

    def together(self, work: Callable[[], T]) -> T:
        """Call `work` on every process, and return its own result (collective). If it fails on one process, end all.

        On each machine, one process goes first, so that the others find its cached files.

        Raises:
            UserError, OSError: `work` raised it here, and on no process before this one.
            OtherProcessError: `work` failed on another process, which prints the message.
        """
        if self.size == 1:
            return work()
        results: list[T] = []
        error: UserError | OSError | None = None
        for is_turn in (self.local_rank == 0, self.local_rank != 0):
            try:
                results += [work()] if is_turn else []
            except (UserError, OSError) as problem:
                error = problem
            failed = self.gather(error is not None)
            if error and failed.index(True) == self.rank:
                raise error
            if any(failed):
                raise OtherProcessError("another process failed")
        return results[0]

    @contextmanager
    def on_main(self, enter: Callable[[], AbstractContextManager[T]]) -> Iterator[T | None]:
        """Enter a context on the main process only. Yield None on the other processes (collective)."""
        with ExitStack() as stack:
            yield self.together(lambda: stack.enter_context(enter()) if self.is_main else None)

    def check_same(self, settings: Mapping[str, object]) -> None:
        """Check that every process has the settings of the main process (collective). Raises ConfigError."""
        main = self.share(dict(settings))
        changed = "; ".join(
            f"{key} {settings[key]} instead of {main[key]}" for key in main if settings[key] != main[key]
        )

        def compare() -> None:
            if changed:
                raise ConfigError(f"process {self.rank} differs from process 0: {escape(changed)[:500]}")

        self.together(compare)

    def connect(self, config: RunConfig) -> None:
        """Create the groups for training, whose operations fail after `runtime.timeout` (collective)."""
        if self.size == 1:
            return
        wait = timedelta(seconds=config.runtime.timeout)
        with unhandled():
            self.group = dist.new_group(timeout=wait)
            if config.runtime.exact and self.size & (self.size - 1) == 0:  # a power of two
                for level in range(self.size.bit_length() - 1):
                    pair = sorted((self.rank, self.rank ^ (1 << level)))
                    self.pairs.append(dist.new_group(pair, timeout=wait, use_local_synchronization=True))

    # --- messages ----------------------------------------------------------------------------------------

    def gather(self, value: T) -> list[T]:
        """Return the values of all processes, in order of rank (collective)."""
        values: list[Any] = [value]
        if self.size > 1:
            values = [None] * self.size
            dist.all_gather_object(values, value, group=self.group)
        return values

    def share(self, value: T) -> T:
        """Return the value of the main process (collective)."""
        values: list[Any] = [value]
        if self.size > 1:
            dist.broadcast_object_list(values, src=0, group=self.group)
        main: T = values[0]
        return main

    def agree(self, signal: int | None) -> int | None:
        """Return a signal that any process has received (collective). Cheaper than `gather`."""
        if self.size == 1:
            return signal
        received = torch.tensor(signal or 0)
        dist.all_reduce(received, dist.ReduceOp.MAX, group=self.group)
        return int(received) or None

    # --- tensors -----------------------------------------------------------------------------------------

    def shards(self, count: int) -> range:
        """Return the shards of this process, out of `count` in each batch."""
        assert count % self.size == 0, "see check_count"
        local_count = count // self.size
        return range(self.rank * local_count, (self.rank + 1) * local_count)

    def sum(self, tensors: Sequence[Tensor]) -> None:
        """Replace tensors by their sums over all processes (collective)."""
        if self.size == 1:
            return
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        for group in self.pairs or [self.group]:
            dist.all_reduce(flat, group=group)
        parts = flat.split([tensor.numel() for tensor in tensors])
        sums = [part.view_as(tensor) for part, tensor in zip(parts, tensors, strict=True)]
        torch._foreach_copy_(list(tensors), sums)

    @torch.no_grad()
    def distribute(self, whole: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
        """Copy the whole tensors of the main process to the tensors, or the rows, of every process (collective)."""
        for name, tensor in tensors.items():
            full = torch.empty(tensor.shape, device=tensor.device) if is_dtensor(tensor) else tensor
            if self.is_main:
                full.copy_(whole[name])
            if self.size > 1:
                dist.broadcast(full, src=0, group=self.group)
            if full is not tensor:
                local(tensor).copy_(rows(full, tensor))

    # --- files -------------------------------------------------------------------------------------------

    def write_together(self, save: Callable[[Write], object], write: Write) -> None:
        """Let the main process `save` with a function that calls `write` with a folder on every process (collective).

        Raises OtherProcessError if `save` failed on the main process.
        """

        def write_parts(folder: Path) -> None:
            problem = ""
            try:
                write(folder)
            except (OSError, SafetensorError) as error:
                problem = f"process {self.rank}: {reason(error)}"
            if problems := [*filter(None, self.gather(problem))]:
                raise OSError("; ".join(problems))

        if self.is_main:
            is_saved = False
            try:
                save(lambda folder: write_parts(self.share(folder)))
                is_saved = True
            finally:
                self.share(is_saved)
        else:
            while isinstance(folder := self.share(None), Path):
                with suppress(OSError):  # the main process raises it, or tries again
                    write_parts(folder)
            if not folder:
                raise OtherProcessError("another process failed")


ONE = Processes()
"""The only process."""


@contextmanager
def join() -> Iterator[Processes]:
    """Join the processes that torchrun started, or yield `ONE`.

    Raises:
        JoinError: The other processes cannot be found.
        UserError: Another process ends before or after training.
    """
    if not is_one_of_several():
        yield ONE
        return
    size, rank = os.environ["WORLD_SIZE"], os.environ.get("RANK") or "0"
    try:
        if int(rank) >= int(size):  # PyTorch would wait for the others
            raise ValueError(f"RANK={rank} must be less")
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        with unhandled():
            dist.init_process_group(backend, timeout=JOINING)
            processes = Processes(dist.get_rank(), dist.get_world_size(), int(os.environ.get("LOCAL_RANK", "0")))
            processes.group = dist.new_group(timeout=PREPARING)
    except (ValueError, RuntimeError) as error:
        problem = f"cannot join the other processes (WORLD_SIZE={escape(size)}): {reason(error).splitlines()[0][:200]}"
        raise JoinError(problem) from error
    try:
        yield processes
        processes.gather(None)  # a process that ends early would look like one that failed
    except RuntimeError as error:
        if not is_lost(error):
            raise
        raise UserError(f"{LOST_CONTACT}; start all processes again") from error
    finally:
        dist.destroy_process_group()


def check_count(size: int, config: RunConfig) -> None:
    """Check that `size` processes can divide the shards of a batch. Raises ConfigError."""
    shards, is_exact = config.train.shards, config.runtime.exact and config.runtime.parallel != "fsdp"
    allowed = [n for n in range(1, shards + 1) if shards % n == 0 and not (is_exact and n & (n - 1))]
    if size in allowed:
        return
    *most, last = map(str, allowed)
    counts = f"{', '.join(most)} or {last} processes" if most else "one process"
    if shards % size == 0:
        problem = f"{size} processes cannot give the same bits as one"
        raise ConfigError(f"{problem}; use {counts}, or set runtime.exact=false")
    raise ConfigError(f"{size} processes cannot divide train.shards={shards}; use {counts}")


def choose_fsdp(size: int, config: RunConfig, vocab_size: int, device: str) -> bool:
    """Return whether to use FSDP2 on `size` processes: if the settings say so, or if a copy of the model does not fit.

    Raises InsufficientMemoryError if a part of the model does not fit, either.
    """
    parallel, what = config.runtime.parallel, f"a model of {count_parameters(config.model, vocab_size):,} parameters"

    def check(is_fsdp: bool) -> None:
        memory = training_memory(config, vocab_size, device, processes=size, is_fsdp=is_fsdp)
        check_memory(f"training {what}", memory, device, config)

    if parallel != "fsdp" or size == 1:
        try:
            check(is_fsdp=False)
            return False
        except InsufficientMemoryError:
            if parallel == "data" or size == 1 or config.model.is_recurrent:
                raise
    check(is_fsdp=True)
    return True


def is_lost(error: Exception) -> bool:
    """Return whether an error means that another process has exited or stopped responding."""
    return isinstance(error, dist.DistError) or any(sign in str(error) for sign in LOST)


def add_shards(shards: range, compute: Callable[[int], list[Tensor]]) -> list[Tensor]:
    """Return the sums of the tensors that `compute` returns for each shard, added as a balanced binary tree."""
    if len(shards) == 1:
        return compute(shards[0])
    half = len(shards) // 2
    left, right = add_shards(shards[:half], compute), add_shards(shards[half:], compute)
    torch._foreach_add_(left, right)
    return left
