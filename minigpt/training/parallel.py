"""Several processes that train one model, as torchrun starts them, or `ONE`.

Each process works on its shards of every batch. Unless `runtime.exact` is false, the summed gradients are bitwise
identical for each number of processes that is allowed. A sum of floating-point numbers depends on its order, so the
order is fixed: shards are added in pairs, pairs of shards in pairs, and so on. A process computes one subtree; sums
over two processes finish the tree. Each sum has two terms, and a + b equals b + a.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from minigpt.config.schema import RunConfig
from minigpt.errors import ConfigError, OtherProcessError, UserError, escape, reason
from minigpt.training.signals import unhandled
from minigpt.world import is_one_of_several

T = TypeVar("T")
JOINING, PREPARING = timedelta(minutes=5), timedelta(days=7)
"""How long a process waits for the others: to start, then before training, while one may be encoding a long text."""
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
        """Whether gradients are bitwise identical to those of one process."""
        return self.size == 1 or bool(self.pairs)

    # --- before training ---------------------------------------------------------------------------------

    def together(self, work: Callable[[], T]) -> T:
        """Call `work` on every process, and return this process's result (collective). If one fails, raise on all.

        Raises:
            UserError, OSError: `work` raised it here, and on no process of a lower rank.
            OtherProcessError: `work` failed on another process, which prints the message.
        """
        if self.size == 1:
            return work()
        results: list[T] = []
        error: UserError | OSError | None = None
        try:
            results.append(work())
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

    def connect(self, config: RunConfig) -> None:
        """Create the groups for training, whose operations fail after `runtime.timeout` seconds (collective)."""
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
        """Return a signal that a process has received, or None (collective). Cheaper than `gather`."""
        if self.size == 1:
            return signal
        received = torch.tensor(signal or 0)
        dist.all_reduce(received, dist.ReduceOp.MAX, group=self.group)
        return int(received) or None

    # --- tensors -----------------------------------------------------------------------------------------

    def part(self, count: int) -> slice:
        """Return this process's part of `count` shards or sequences."""
        assert count % self.size == 0, "see check_count"
        local_count = count // self.size
        return slice(self.rank * local_count, (self.rank + 1) * local_count)

    def add_shards(
        self, count: int, backward: Callable[[Tensor, Tensor, int], Tensor], x: Tensor, y: Tensor, leaves: list[Tensor]
    ) -> Tensor:
        """Add the gradients of all shards of a batch, and return the sum of their losses (collective).

        All processes end with the same gradients.

        Args:
            count: The number of shards of the batch.
            backward: Sets the gradients for the part x, y of shard i, as `backward(x, y, i)`, and returns its loss.
            x, y: This process's part of the batch, (B, T) each.
            leaves: The tensors that have gradients.
        """
        shards = range(count)[self.part(count)]
        parts = (ids.split(len(ids) // len(shards)) for ids in (x, y))
        # A stack of sums of subtrees: gradients, and the loss.
        sums: list[list[Tensor]] = []
        for shard, x_part, y_part, merges in zip(shards, *parts, tree_merges(len(shards)), strict=True):
            loss = backward(x_part, y_part, shard)
            sums.append([*(leaf.grad for leaf in leaves if leaf.grad is not None), loss])
            for _ in range(merges):
                right = sums.pop()
                torch._foreach_add_(sums[-1], right)
        ((*gradients, loss),) = sums
        self.sum([*gradients, loss])
        for leaf, gradient in zip(leaves, gradients, strict=True):
            leaf.grad = gradient
        return loss

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

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """Copy the tensors of the main process to all processes (collective)."""
        for tensor in tensors if self.size > 1 else ():
            dist.broadcast(tensor, src=0, group=self.group)


ONE = Processes()
"""The only process."""


@contextmanager
def join() -> Iterator[Processes]:
    """Join the processes that torchrun started, or yield `ONE`.

    Raises:
        UserError: The other processes cannot be found, or contact with one is lost outside of `train`.
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
        raise UserError(f"{problem}; use torchrun, or unset WORLD_SIZE to train in one process") from error
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
    shards, is_exact = config.train.shards, config.runtime.exact
    allowed = [n for n in range(1, shards + 1) if shards % n == 0 and not (is_exact and n & (n - 1))]
    if size in allowed:
        return
    *most, last = map(str, allowed)
    counts = f"{', '.join(most)} or {last} processes" if most else "one process"
    if shards % size == 0:
        problem = f"{size} processes cannot give weights bitwise identical to those of one process"
        raise ConfigError(f"{problem}; use {counts}, or set runtime.exact=false")
    raise ConfigError(f"{size} processes cannot divide train.shards={shards}; use {counts}")


def is_lost(error: Exception) -> bool:
    """Return whether an error means that another process has exited or stopped responding."""
    return isinstance(error, dist.DistError) or any(sign in str(error) for sign in LOST)


def tree_merges(count: int) -> list[int]:
    """Return how often the two latest sums are added after each of `count` terms, for a balanced binary tree."""
    if count == 1:
        return [0]
    half = count // 2
    *most, last = tree_merges(half) + tree_merges(count - half)
    return [*most, last + 1]
