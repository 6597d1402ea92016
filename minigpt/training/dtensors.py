"""DTensors, as FSDP2 makes them: each process holds some rows. Other tensors pass through.

This file does not import DTensor, which takes 0.4 s.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


def is_dtensor(tensor: Tensor) -> bool:
    """Return whether each process holds only some rows of `tensor`."""
    return hasattr(tensor, "to_local")


def local(tensor: Tensor) -> Tensor:
    """Return the rows of `tensor` that this process holds: all of them, unless it is a DTensor."""
    own: Tensor = tensor.to_local() if is_dtensor(tensor) else tensor  # type: ignore[attr-defined]
    return own


def rows(whole: Tensor, like: Tensor) -> Tensor:
    """Return the rows of `whole` that this process holds if `like` is a DTensor."""
    if not is_dtensor(like):
        return whole
    mesh = like.device_mesh  # type: ignore[attr-defined]
    parts, rank = whole.chunk(mesh.size()), mesh.get_local_rank()
    return parts[rank] if rank < len(parts) else whole[:0]


def whole(tensor: Tensor) -> Tensor:
    """Return the whole tensor (collective for a DTensor)."""
    full: Tensor = tensor.full_tensor() if is_dtensor(tensor) else tensor  # type: ignore[attr-defined]
    return full


def gathered(own: Tensor, like: Tensor) -> Tensor:
    """Return the whole tensor from the rows `own` of each process, if `like` is a DTensor (collective)."""
    if not is_dtensor(like):
        return own
    sharded: Any = like
    shape = {"shape": like.shape, "stride": like.stride()}
    return whole(sharded.from_local(own, sharded.device_mesh, sharded.placements, **shape))


def add_accumulated(model: nn.Module, shards: range, accumulate: Callable[[int], Tensor]) -> Tensor:
    """Call `accumulate` for each shard of a batch, and return the sum of its losses (collective).

    FSDP2 keeps the gradients in each process, and exchanges them after the last shard.
    """
    losses = []
    for shard in shards:
        model.set_requires_gradient_sync(shard == shards[-1])  # type: ignore[operator]
        losses.append(accumulate(shard))
    return torch.stack(losses).sum()
