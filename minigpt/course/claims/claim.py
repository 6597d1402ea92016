"""Claims: true statements about attention, each with what is often said instead and what decides it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from minigpt.course.claims.experiment import Experiment


@dataclass(frozen=True)
class Finding:
    """The outcome of a check."""

    holds: bool
    """Whether the claim's title is true."""
    measured: str
    """The measured values, as text for the reader."""


@dataclass(frozen=True)
class Claim:
    """A true statement about attention, and what decides it: a check, recorded training runs, or both."""

    id: int
    title: str
    """The true statement."""
    check: Callable[[], Finding] | None = None
    said: str | None = None
    """What is often said instead."""
    mistake: str | None = None
    """What is wrong with it. None if nothing is."""
    trained: tuple[Experiment, ...] = ()
    """Recorded training runs about the claim."""


@dataclass(frozen=True)
class Result:
    """A claim with its verdict, as `minigpt claims --json` prints it."""

    id: int
    part: str
    title: str
    verdict: str
    """PASS or FAIL."""
    said: str | None
    mistake: str | None
    measured: str
    trained: list[str]
    """The findings of recorded training runs."""
    where: str
    """File and line of the check, or the page of the experiment."""


def decide(claim: Claim, part: str) -> Result:
    """Run the check of a claim of the theme `part`, compare its recorded runs, and return the result."""
    finding = claim.check() if claim.check else Finding(bool(claim.trained), "")
    where = claim.trained[0].page_path if claim.trained else ""
    if check := claim.check:
        where = f"{check.__module__.replace('.', '/')}.py:{check.__code__.co_firstlineno}"
    holds = finding.holds and all(experiment.holds() for experiment in claim.trained)
    return Result(
        claim.id,
        part,
        claim.title,
        "PASS" if holds else "FAIL",
        claim.said,
        claim.mistake,
        finding.measured,
        [experiment.text() for experiment in claim.trained],
        where,
    )


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


def max_abs(difference: Tensor) -> float:
    """Return the largest absolute value of the elements."""
    return difference.abs().max().item()
