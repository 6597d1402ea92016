"""Claims: true statements about attention, each with the evidence that decides it.

If a claim is about minigpt's own model, its test uses that model, and so also tests it. If the model has no option for
something, such as attention without a mask, the test builds it. Recorded runs of the lab notebook (docs/project/lab)
decide claims that depend on training.
"""

import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, wraps

import torch
from records import LAB, Run, lengths, measure, read, sections
from torch import Tensor


@cache
def recorded() -> dict[str, list[Run]]:
    """Return all runs of the lab notebook by question."""
    return {**read(), "lengths": lengths()}


@dataclass(frozen=True)
class Experiment:
    """A question of the lab notebook, and what its runs found."""

    question: str
    """The name of the question in docs/project/lab/runs.jsonl, or `lengths`."""
    page: str
    """Its page in docs/project/lab, and its section there: `attention#do-more-heads-help`."""
    finding: str
    """What the runs found, with a quantity in braces for each number.

    `VARIANT` means its final loss, `VARIANT/KEY` another value of its runs, and `VARIANT/KEY[a:b]` the mean of a list
    from its a-th to its b-th number. Two quantities with " - " or " / " between mean their difference or ratio by seed:
    `{lstm}`, `{lstm/best}`, `{lstm - baseline}`, `{lstm/gradient[91:107] / lstm/gradient[1:1]}`.
    """
    condition: Callable[..., bool]
    """Whether the finding is true. Receives the mean of each quantity, in the order of the text."""

    def values(self) -> list[list[float]]:
        """Return the recorded values of each quantity, one for each seed, in the order of the text."""
        return [measure(quantity, recorded()[self.question]) for quantity in re.findall(r"{(.+?)}", self.finding)]

    def section(self) -> str:
        """Return the section of the notebook."""
        page, _, anchor = self.page.partition("#")
        return sections(LAB / f"{page}.md")[anchor]

    def text(self) -> str:
        """Return the finding with the recorded numbers."""
        numbers = iter(self.values())
        return re.sub(r"{.+?}", lambda _: mean_and_error(next(numbers)), self.finding)

    def check(self) -> None:
        """Check that the runs satisfy the condition, and that the section says how to list them."""
        assert self.condition(*map(statistics.fmean, self.values())), self.text()
        assert re.search(rf"scripts/lab/(report .*)?\b{self.question}\b", self.section())


Test = Callable[[], str | None]
"""Raises AssertionError if a claim is false, or returns what it measured. None if only recorded runs decide."""


@dataclass(frozen=True)
class Claim:
    """A true statement about attention, and what decides it: a test, recorded training runs, or both."""

    title: str
    """The true statement."""
    said: str
    """What is often said instead, or ""."""
    mistake: str
    """What is wrong with it."""
    test: Test
    trained: list[Experiment]
    """Recorded training runs about the claim."""

    @property
    def anchor(self) -> str:
        """The anchor on the page of the claims."""
        return self.test.__name__.removeprefix("test_claim_").replace("_", "-")

    def check(self) -> str | None:
        """Run the test with the same random numbers each time, check the runs, and return what the test measured."""
        for experiment in self.trained:
            experiment.check()
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # the matrices are too small for more, and sums have one order on every machine
        torch.manual_seed(0)
        try:
            return self.test()
        finally:
            torch.set_num_threads(threads)


CLAIMS: list[Claim] = []
"""The claims of all imported files, in reading order."""


def claim(title: str, said: str = "", mistake: str = "") -> Callable[[Test], Callable[[], None]]:
    """Register a function as the test of a claim, and turn it into a test that pytest runs."""

    def register(test: Test) -> Callable[[], None]:
        registered = Claim(title, said, mistake, test, test.__dict__.get("trained", []))
        CLAIMS.append(registered)

        @wraps(test)
        def run() -> None:
            registered.check()

        return run

    return register


def trained(question: str, page: str, finding: str, condition: Callable[..., bool]) -> Callable[[Test], Test]:
    """Add an experiment to a claim, whose decorator is above. The arguments are the fields of `Experiment`."""

    def add(test: Test) -> Test:
        test.__dict__.setdefault("trained", []).insert(0, Experiment(question, page, finding, condition))
        return test

    return add


def mean_and_error(values: Sequence[float]) -> str:
    """Format the mean and, for several values, its standard error: 0.348 ± 0.012, or 6e-05 ± 1e-05."""
    mean = statistics.fmean(values)
    style = ".0e" if 0 < abs(mean) < 0.0005 else ".3f"
    error = f" ± {statistics.stdev(values) / len(values) ** 0.5:{style}}" if len(values) > 1 else ""
    return f"{mean:{style}}{error}"


def fmt(value: float | Tensor | Sequence[float]) -> str:
    """Format numbers, separated by commas: 0.123, 4.57, 12,345, 3e-16."""
    value = value.tolist() if isinstance(value, Tensor) else value
    if isinstance(value, Sequence):
        return ", ".join(map(fmt, value))
    if value == 0:
        return "0"
    if 1e-3 <= abs(value) < 1e6:
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{value:.0e}"
