"""Tensors of which each process holds some rows: DTensors, as FSDP2 makes them. Other tensors pass through.

DTensor is imported where it is needed, because that takes 0.4 s.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn


def is_sharded(tensor: Tensor) -> bool:
    """Return whether each process holds only some rows of `tensor`."""
    return hasattr(tensor, "to_local")


def local(tensor: Tensor) -> Tensor:
    """Return the rows of `tensor` that this process holds: all of them, unless it is sharded."""
    own: Tensor = tensor.to_local() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]
    return own


def rows(whole: Tensor, like: Tensor) -> Tensor:
    """Return the rows of the tensor `whole` that this process holds of `like`."""
    if not is_sharded(like):
        return whole
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(like, DTensor)
    return distribute_tensor(whole, like.device_mesh, like.placements, src_data_rank=None).to_local()


def whole(tensor: Tensor) -> Tensor:
    """Return the whole tensor (collective if it is sharded)."""
    full: Tensor = tensor.full_tensor() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]
    return full


def gathered(own: Tensor, like: Tensor) -> Tensor:
    """Return the whole tensor of which this process holds the rows `own`, sharded like `like` (collective)."""
    if not is_sharded(like):
        return own
    from torch.distributed.tensor import DTensor

    assert isinstance(like, DTensor)
    mesh, placements = like.device_mesh, like.placements
    return DTensor.from_local(own, mesh, placements, shape=like.shape, stride=like.stride()).full_tensor()


def add_sharded(model: nn.Module, shards: range, backward: Callable[[int], Tensor]) -> Tensor:
    """Call `backward` for each shard of a batch, and return the sum of its losses (collective).

    FSDP2 keeps the gradients in each process, and exchanges them after the last shard.
    """
    losses = []
    for shard in shards:
        model.set_requires_gradient_sync(shard == shards[-1])  # type: ignore[operator]
        losses.append(backward(shard))
    return torch.stack(losses).sum()
