"""Claims: statements from the lecture notes, each with a check that decides it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Finding:
    """The outcome of a check."""

    holds: bool
    """Whether the claim holds. If the claim has a correction, whether the correction holds."""
    measured: str
    """The measured values, as text for the reader."""


@dataclass(frozen=True)
class Claim:
    """A statement from the lecture notes, in our words."""

    id: int
    statement: str
    notes: tuple[str, ...]
    """The numbers of the notes that make the statement."""
    check: Callable[[], Finding]
    correction: str | None = None
    """The correct statement, if the claim is wrong. The check then tests the correction."""


@dataclass(frozen=True)
class Result:
    """A claim with its verdict, as `minigpt claims --json` prints it."""

    id: int
    claim: str
    note: str
    measured: str
    verdict: str
    """PASS, CORRECTED (the statement is wrong, its correction holds) or FAIL. `evidence.py` has more for runs."""
    correction: str | None
    where: str
    """File and line of the check."""


def decide(claim: Claim) -> Result:
    """Run the check of a claim, and return the result."""
    finding = claim.check()
    verdict = "FAIL" if not finding.holds else "CORRECTED" if claim.correction else "PASS"
    notes, where = ", ".join(claim.notes), location(claim.check)
    return Result(claim.id, claim.statement, notes, finding.measured, verdict, claim.correction, where)


def location(check: Callable[..., object]) -> str:
    """Return the file and line where a check is defined."""
    return f"{check.__module__.replace('.', '/')}.py:{check.__code__.co_firstlineno}"


def fmt(value: float | Tensor | Sequence[float]) -> str:
    """Format numbers to three significant digits, separated by commas: 0.123, 4.57, 12,345, 3e-16."""
    value = value.tolist() if isinstance(value, Tensor) else value
    if isinstance(value, Sequence):
        return ", ".join(map(fmt, value))
    if value == 0:
        return "0"
    if 1e-3 <= abs(value) < 1e6:
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{value:.0e}"


def fmt_named(values: Mapping[str, float | Sequence[float]]) -> str:
    """Format numbers with their names: 0.687 (RNN), 0.27 (LSTM)."""
    separator = "; " if any(isinstance(value, Sequence) for value in values.values()) else ", "
    return separator.join(f"{fmt(value)} ({name})" for name, value in values.items())


def max_abs(difference: Tensor) -> float:
    """Return the largest absolute value of the elements."""
    return difference.abs().max().item()
