"""A GPU that computes shapes, types and devices but no numbers, on a machine without one.

PyTorch's fake tensors refuse an operation on tensors of two devices, like a real GPU. They cannot be copied to "cuda"
in a build of PyTorch without CUDA, so the GPU here is a device type of its own.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils import backend_registration


class _NumbersAreZero(TorchFunctionMode):
    """Answer 0 if the code asks a fake tensor for a number, and True for a condition."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (Tensor.item, Tensor.__bool__, Tensor.__int__) and isinstance(args[0], FakeTensor):
            return True if func is Tensor.__bool__ else 0
        return func(*args, **(kwargs or {}))


@cache
def gpu_device() -> torch.device:
    """Return the fake GPU. Skip the test if this version of PyTorch cannot register a device type."""
    if not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"):
        pytest.skip("needs a newer PyTorch")
    backend_registration._setup_privateuseone_for_python_backend("gpu")
    torch.gpu.get_amp_supported_dtype = lambda: [torch.bfloat16]  # type: ignore[attr-defined]
    torch.gpu.get_rng_state = lambda *_: torch.empty(0)  # type: ignore[attr-defined]  # for torch.random.fork_rng
    torch.gpu.set_rng_state = lambda *_: None  # type: ignore[attr-defined]
    return torch.device("gpu", 0)


@contextmanager
def fake_gpu() -> Iterator[torch.device]:
    """Within the block, create fake tensors. Yield the device of the GPU."""
    device = gpu_device()
    with FakeTensorMode(allow_non_fake_inputs=True), _NumbersAreZero():
        yield device
