"""Recorded training runs that decide a claim.

The lab notebook (docs/project/lab) records all runs in runs.jsonl. `scripts/make_docs` copies the numbers that the
claims use into recorded.json, so that no number is typed twice and an installed minigpt has them.
"""

import json
import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

RECORDED = Path(__file__).with_name("recorded.json")


@dataclass(frozen=True)
class Experiment:
    """A question of the lab notebook, and what its runs found."""

    question: str
    """The name of the question in docs/project/lab/runs.jsonl."""
    page: str
    """The name of its page, and of the figure there, in docs/project/lab."""
    finding: str
    """What the runs found, with a quantity in braces for each number.

    A quantity is a variant for its final loss, `VARIANT/KEY` for another value of its runs, or two of them with " - "
    between, for their difference by seed: `{lstm}`, `{lstm/best}`, `{lstm - baseline}`.
    """
    condition: Callable[..., bool]
    """Whether the finding is true. Receives the mean of each quantity, in the order of the text."""

    @property
    def page_path(self) -> str:
        """The page, relative to the root of the repository."""
        return f"docs/project/lab/{self.page}.md"

    @property
    def quantities(self) -> list[str]:
        """The quantities of the finding, in the order of the text."""
        return re.findall(r"{(.+?)}", self.finding)

    def values(self) -> list[list[float]]:
        """Return the recorded values of each quantity, one for each seed."""
        recorded = json.loads(RECORDED.read_text(encoding="utf-8"))[self.question]
        return [recorded[quantity] for quantity in self.quantities]

    def holds(self) -> bool:
        """Return whether the recorded values satisfy the condition."""
        return self.condition(*map(statistics.fmean, self.values()))

    def text(self) -> str:
        """Return the finding with the recorded numbers."""
        numbers = iter(self.values())
        return re.sub(r"{.+?}", lambda _: mean_and_error(next(numbers)), self.finding)


def mean_and_error(values: Sequence[float]) -> str:
    """Format the mean and, for several values, its standard error: 0.348 ± 0.012."""
    mean = f"{statistics.fmean(values):.3f}"
    return f"{mean} ± {statistics.stdev(values) / len(values) ** 0.5:.3f}" if len(values) > 1 else mean


def measure(quantity: str, runs: Sequence[dict[str, object]]) -> list[float]:
    """Return the values of a quantity, one for each seed, from the recorded runs of its question.

    Raises:
        KeyError: No run has the variant or the value.
    """
    variants = {str(run["variant"]) for run in runs}

    def by_seed(term: str) -> dict[int, float]:
        variant, _, key = (term, "", "loss") if term in variants else term.rpartition("/")
        found = {int(str(run["seed"])): float(str(run[key])) for run in runs if run["variant"] == variant}
        if not found:
            raise KeyError(f"no runs of {term!r}")
        return dict(sorted(found.items()))

    if quantity in variants or " - " not in quantity:
        return list(by_seed(quantity).values())
    above, below = map(by_seed, quantity.split(" - "))
    return [round(value - below[seed], 5) for seed, value in above.items() if seed in below]
