"""Fixtures of the course's tests."""

import sys
from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def own_modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Forget checked files, and their folders, after each test."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    for name in ("mygpt", "parts"):
        sys.modules.pop(name, None)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Use one thread: for such small tensors, a second one only waits."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
