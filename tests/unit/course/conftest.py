"""Fixtures of the course's tests."""

import sys

import pytest


@pytest.fixture(autouse=True)
def own_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the modules of a checked file, and where they are, after each test."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "modules", {**sys.modules})
