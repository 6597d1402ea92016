"""DTensors, as FSDP2 makes them: each process holds some rows. Other tensors pass through.

This file does not import DTensor, which takes 0.4 s.
"""

from typing import Any

from torch import Tensor


def is_dtensor(tensor: Tensor) -> bool:
    """Return whether each process holds only some rows of `tensor`."""
    return hasattr(tensor, "to_local")


def local(tensor: Tensor) -> Tensor:
    """Return the rows of `tensor` that this process holds: all rows, unless it is a DTensor."""
    local_rows: Tensor = tensor.to_local() if is_dtensor(tensor) else tensor  # type: ignore[attr-defined]
    return local_rows


def rows(full: Tensor, like: Tensor) -> Tensor:
    """Return the rows of `full` that this process holds if `like` is a DTensor."""
    if not is_dtensor(like):
        return full
    mesh = like.device_mesh  # type: ignore[attr-defined]
    parts, rank = full.chunk(mesh.size()), mesh.get_local_rank()
    return parts[rank] if rank < len(parts) else full[:0]


def whole(tensor: Tensor) -> Tensor:
    """Return the whole tensor (collective for a DTensor)."""
    full: Tensor = tensor.full_tensor() if is_dtensor(tensor) else tensor  # type: ignore[attr-defined]
    return full


def gathered(local_rows: Tensor, like: Tensor) -> Tensor:
    """Return the whole tensor from the rows of each process, if `like` is a DTensor (collective)."""
    if not is_dtensor(like):
        return local_rows
    split: Any = like
    shape = {"shape": like.shape, "stride": like.stride()}
    return whole(split.from_local(local_rows, split.device_mesh, split.placements, **shape))
