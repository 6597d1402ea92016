"""Compare what the reader's code returns with what it should return, and say how they differ."""

import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

TOLERANCE = 1e-4
EXCHANGED = "queries and keys look exchanged"


class Mistake(Exception):
    """A mistake in the reader's code, in words that follow the name of a case."""


class Skipped(Exception):
    """A check that is impossible for a reason outside of the reader's code."""


@dataclass(frozen=True)
class Case:
    """A call of the reader's code, and what it should return."""

    name: str
    """What the case checks, often as the reader would type it."""
    call: Callable[[], Any]
    expected: Any = None
    """What `call` should return, or None if `call` itself raises Mistake."""
    mistakes: Mapping[str, Any] = field(default_factory=dict)
    """What known mistakes return, by their description."""

    def problem(self) -> str:
        """Call the code. Return how its result differs, with the mistake if it is known, or "" if it agrees."""
        actual = self.call()
        problem = "" if self.expected is None else difference(actual, self.expected)
        descriptions = (name for name, wrong in self.mistakes.items() if not difference(actual, wrong))
        return ": ".join(filter(None, (problem, next(descriptions, "") if problem else "")))


def difference(actual: Any, expected: Any) -> str:
    """Return how `actual` differs from `expected`, such as "is ..., expected ...", or "" if they agree."""
    if not isinstance(expected, Tensor):
        is_equal = isinstance(actual, type(expected)) and actual == expected
        return "" if is_equal else f"is {_short(actual)}, expected {_short(expected)}"
    if isinstance(actual, int | float) and not expected.ndim:
        actual = torch.tensor(actual)
    wanted = f"expected a tensor of shape {tuple(expected.shape)}"
    if not isinstance(actual, Tensor):
        return f"is {_short(actual)}, {wanted}"
    if expected.dtype == torch.bool != actual.dtype:
        return f"has {actual.dtype}, expected torch.bool"
    if actual.shape != expected.shape:
        return f"has shape {tuple(actual.shape)}, {wanted}"
    a, b = actual.detach().cpu().double(), expected.detach().double()
    differs = ~torch.isclose(a, b, rtol=0, atol=TOLERANCE, equal_nan=True)
    if differs.any():
        first = tuple(differs.nonzero()[0].tolist())
        at = f" at {list(first)}" if first else ""
        style = ".4f" if expected.is_floating_point() else ".0f"
        return f"is {a[first].item():{style}}{at}, expected {b[first].item():{style}}"
    return ""


def _short(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return shorten(reprlib.repr(value), 60)  # which survives a class of the reader that has no repr


def shorten(text: str, length: int) -> str:
    """Return `text`, or its beginning and three dots if it is longer than `length`."""
    return text if len(text) <= length else f"{text[: length - 3]}..."


def load(reader: nn.Module, model: nn.Module) -> nn.Module:
    """Return the reader's module with the parameters of minigpt's. Raises Mistake if names or shapes differ."""
    theirs, ours = (dict(module.named_parameters()) for module in (reader, model))
    for name in (*ours, *theirs):
        if name not in theirs:
            is_list = isinstance(getattr(reader, name.partition(".")[0], None), list)
            raise Mistake(f"has no parameter {name}" + ": its list of blocks is no nn.ModuleList" * is_list)
        if name not in ours:
            raise Mistake(f"has a parameter {name}, which is not in the chapter")
        if theirs[name].shape != ours[name].shape:
            raise Mistake(f"has {name} of shape {tuple(theirs[name].shape)}, expected {tuple(ours[name].shape)}")
    with torch.no_grad():
        for name, parameter in theirs.items():
            parameter.copy_(ours[name])
    return reader.eval()
