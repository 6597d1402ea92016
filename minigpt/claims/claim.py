"""What a claim is: a sentence of the lecture notes, and the check that decides it."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Finding:
    """What a check came to: whether it holds, and the figures that say so, computed just now."""

    holds: bool
    measured: str


@dataclass(frozen=True)
class Claim:
    """A sentence of the lecture notes, in our words.

    Where the notes are wrong, `says` is what they say and `correction` what is right, which is then what the
    check decides.
    """

    id: int
    says: str
    notes: tuple[str, ...]
    check: Callable[[], Finding]
    correction: str | None = None


@dataclass(frozen=True)
class Result:
    """A claim and its verdict, as they are printed.

    `verdict` is PASS, CORRECTED where the notes are wrong and the check proved what is right, or FAIL. `where`
    is the file and line of the check.
    """

    id: int
    claim: str
    note: str
    measured: str
    verdict: str
    correction: str | None
    where: str


def decide(claim: Claim) -> Result:
    """Run the check of `claim`."""
    finding = claim.check()
    verdict = "FAIL" if not finding.holds else "CORRECTED" if claim.correction else "PASS"
    notes, where = ", ".join(claim.notes), where_is(claim.check)
    return Result(claim.id, claim.says, notes, finding.measured, verdict, claim.correction, where)


def where_is(check: Callable[..., object]) -> str:
    """Return the file and line at which a check begins."""
    return f"{check.__module__.replace('.', '/')}.py:{check.__code__.co_firstlineno}"


def figure(value: float | Tensor) -> str:
    """Return a number as people read it: 0.123, 4.57, 12,345, and 3e-16 where it is next to nothing."""
    value = value.item() if isinstance(value, Tensor) else value
    if value == 0:
        return "0"
    if 1e-3 <= abs(value) < 1e6:
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{value:.0e}"


def figures(values: list[float]) -> str:
    """Return several numbers as people read them, side by side."""
    return ", ".join(figure(value) for value in values)


def largest(difference: Tensor) -> float:
    """Return the largest of some differences, whichever their sign."""
    return difference.abs().max().item()
