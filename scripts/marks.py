"""Put recorded numbers into the pages, the README and the descriptions of presets.

A comment after a number names it: `0.44<!--n:stories loss .2f-->`. The name is a group and a key of
docs/project/lab/numbers.yaml. `PRESET loss` comes from scripts/lab/expected.yaml, and `lab runs`, `lab questions` and
`QUESTION: QUANTITY` from the recorded runs (scripts/lab/records.py). `.2f` rounds the number. Of several measurements,
the mark shows the mean, with `least` the least, and with `range` both ends, or of losses the mean ± standard error:
`391 to 428<!--n:shakespeare-medium s range-->`.

A comment after a block of code lists the numbers that the block must contain: `<!--n:default loss, default steps-->`.
"""

import re
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import records
import yaml

ROOT = Path(__file__).resolve().parent.parent
PATTERNS = ("README.md", "docs/*.md", "docs/*/*.md", "docs/project/lab/*.md", "configs/*.yaml")
NUMBER = r"-?[\d.,]*\d%?"
MARK = "<!--n:([^>]*?)-->"
MARKED = re.compile(
    rf"(?:{NUMBER} (?:to|±)\s+)?(?:{NUMBER}|\?)<!--n:([^>]*?\s(?:range|seeds))-->|(?:{NUMBER}|\?){MARK}"
)
BLOCK = re.compile(rf"^```\w+\n(.*?)^```\n+{MARK}", re.DOTALL | re.MULTILINE)


def fill(page: str, number: Callable[[str], str]) -> str:
    """Return a page with the number of each mark before it. Line breaks stay where the number is right."""

    def filled(found: re.Match[str]) -> str:
        name, old = (" ".join(text.split()) for text in (found[1] or found[2], found[0]))
        new = f"{number(name)}<!--n:{name}-->"
        return found[0] if old == new else new

    return MARKED.sub(filled, page)


class Numbers:
    """The recorded numbers, by group and key."""

    def __init__(self) -> None:
        self.groups: dict[str, dict[str, Any]] = yaml.safe_load((records.LAB / "numbers.yaml").read_text("utf-8"))
        for preset, entry in yaml.safe_load((ROOT / "scripts/lab/expected.yaml").read_text("utf-8")).items():
            self.groups.setdefault(preset, {})["loss"] = entry["losses"]
        self.runs = records.read()
        self.groups["course"] = {"chapters": len([*ROOT.glob("docs/course/[0-9]*.md")])}
        self.groups["lab"] = {"questions": len(self.runs), "runs": sum(map(len, self.runs.values()))}

    def text(self, name: str) -> str:
        """Return the number with this name."""
        found = re.fullmatch(r"(.+?)(?: (\.\df))?(?: (range|least))?", name)
        assert found is not None
        key, style, part = found[1], found[2], found[3]
        question, _, quantity = key.partition(": ")
        group, _, last = key.rpartition(" ")
        value = records.measure(quantity, self.runs[question]) if quantity else self.groups[group][last]
        if not isinstance(value, list):
            return f"{value:{style or ','}}"
        if part == "range" and (quantity or last == "loss"):
            error = statistics.stdev(value) / len(value) ** 0.5
            return f"{statistics.fmean(value):{style or '.4f'}} ± {error:{style or '.4f'}}"
        if part == "range":
            return f"{min(value):{style or ','}} to {max(value):{style or ','}}"
        return f"{min(value) if part else statistics.fmean(value):{style or '.0f'}}"

    def problems(self, page: str) -> Iterator[str]:
        """Yield what `fill` cannot correct: marked numbers that are not in the block before their mark."""
        for block, names in BLOCK.findall(page):
            for name in names.split(", "):
                if not re.search(rf"(?<![\d.,]){re.escape(self.text(name))}(?!\d)", block):
                    yield f"a block lacks {self.text(name)} ({name})"


def marked_files() -> Iterator[Path]:
    """Yield the files with marks, except the chapters of the course."""
    for pattern in PATTERNS:
        for path in sorted(ROOT.glob(pattern)):
            is_chapter = path.parent.name == "course" and path.name[0].isdigit()
            if not is_chapter and "<!--n:" in path.read_text(encoding="utf-8"):
                yield path
