"""The chapters of the course: their titles, what each measures, and the numbers on their pages."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from minigpt.course import film, letters, networks

RECORDED = Path(__file__).with_name("chapters.json")
"""The titles and numbers of the chapters. scripts/record_course writes the values of SEEDS."""
SEEDS = (1, 2, 3, 4, 5)
"""The seeds of these numbers."""


@dataclass(frozen=True)
class Number:
    """A number of a chapter: what it is, and how to print it."""

    label: str
    style: str
    values: list[float]
    """The values of the course, one for each seed."""

    def range(self) -> tuple[float, float]:
        """Return the range of the course, in which a reader's value should be.

        One of three times, a sixth seed is outside the range of five. So each end moves outward by half of the
        distance between the ends, but not below zero and, for a share, not above one.
        """
        low, high = min(self.values), max(self.values)
        margin = (high - low) / 2
        highest = max(high, 1.0) if "%" in self.style else high + margin
        return max(min(low, 0.0), low - margin), min(high + margin, highest)

    def show(self, value: float) -> str:
        """Return the value as text."""
        return f"{value:{self.style}}"

    def show_range(self) -> str:
        """Return the range of the course as text."""
        low, high = map(self.show, self.range())
        return low if low == high else f"{low} to {high}"

    def is_outside(self, value: float) -> bool:
        """Return whether a value is outside the range of the course and, as printed, differs from its two ends."""
        low, high = self.range()
        return not low <= value <= high and self.show(value) not in (self.show(low), self.show(high))


@dataclass(frozen=True)
class Chapter:
    """A chapter of the course."""

    number: int
    title: str
    numbers: Mapping[str, Number]
    measure: Callable[[int], dict[str, float]]
    """Return the numbers of the chapter by name, for a seed."""

    @property
    def page(self) -> str:
        """The name of its file in docs/course."""
        return f"{self.number:02}-{self.title.lower().replace(' ', '-').replace('?', '')}.md"


MEASURES = (
    letters.guess, letters.average, letters.fox, letters.scale, letters.one_head, networks.positions, networks.heads,
    networks.block, networks.yours, networks.spectrum, film.learned, networks.replaced,
)  # fmt: skip
"""The field `measure` of each chapter."""
CHAPTERS = tuple(
    Chapter(i, entry["title"], {name: Number(**number) for name, number in entry["numbers"].items()}, measure)
    for i, (entry, measure) in enumerate(zip(json.loads(RECORDED.read_text("utf-8")), MEASURES, strict=True), 1)
)
