"""Fixtures of the course's tests."""

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def own_modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Forget checked files, and their folders, after each test."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    for name in ("mygpt", "try1"):
        sys.modules.pop(name, None)
