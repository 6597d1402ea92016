"""Recorded training runs that decide a claim.

`scripts/make_docs` copies the numbers that the claims use from the lab notebook (docs/project/lab) into recorded.json,
so that no number is typed twice and an installed minigpt has them.
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
    """The name of the question in docs/project/lab/runs.jsonl, or `lengths`."""
    page: str
    """Its page in docs/project/lab, and its section there: `attention#do-more-heads-help`."""
    finding: str
    """What the runs found, with a quantity in braces for each number.

    A quantity is a variant for its final loss, `VARIANT/KEY` for another value of its runs, or `VARIANT/KEY[a:b]` for
    the mean of a list from its a-th to its b-th number. Two of them with " - " or " / " between are their difference
    or ratio by seed: `{lstm}`, `{lstm/best}`, `{lstm - baseline}`, `{lstm/gradient[91:107] / lstm/gradient[1:1]}`.
    """
    condition: Callable[..., bool]
    """Whether the finding is true. Receives the mean of each quantity, in the order of the text."""

    @property
    def page_path(self) -> str:
        """The page and its section, relative to the root of the repository."""
        return f"docs/project/lab/{self.page.replace('#', '.md#')}"

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
    """Format the mean and, for several values, its standard error: 0.348 ± 0.012, or 6e-05 ± 1e-05."""
    mean = statistics.fmean(values)
    style = ".0e" if 0 < abs(mean) < 0.0005 else ".3f"
    error = f" ± {statistics.stdev(values) / len(values) ** 0.5:{style}}" if len(values) > 1 else ""
    return f"{mean:{style}}{error}"
