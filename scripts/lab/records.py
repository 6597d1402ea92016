"""The recorded runs of all questions, and the measurements of scripts/lab/lengths."""

import json
import math
import operator
import re
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

LAB = Path(__file__).resolve().parents[2] / "docs/project/lab"
"""The pages of the lab notebook, their figures and the recorded runs."""
RUNS = LAB / "runs.jsonl"
LENGTHS = LAB / "lengths.jsonl"
Run = dict[str, Any]


def read(path: Path = RUNS) -> dict[str, list[Run]]:
    """Return the recorded runs by question."""
    found: dict[str, list[Run]] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        run = json.loads(line)
        found.setdefault(run["question"], []).append(run)
    return found


def sections(page: Path) -> dict[str, str]:
    """Return the sections of a page of the notebook by their anchors, each from its heading on."""
    _, *found = re.split(r"(?m)^## ", page.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w\s-]", "", text.partition("\n")[0]).lower().replace(" ", "-"): text for text in found}


def slope(points: list[Run], name: str) -> float:
    """Return the exponent of the growth over the last four lengths: the slope of a line fitted on logarithmic axes."""
    last = sorted(points, key=lambda point: point["length"])[-4:]
    x, y = ([math.log(point[key]) for point in last] for key in ("length", name))
    return round(statistics.linear_regression(x, y).slope, 8)  # Python 3.12 changed the last digits


def lengths(path: Path = LENGTHS) -> list[Run]:
    """Return the measurements of scripts/lab/lengths as one run for each family.

    `train_ms` has the times at all lengths, and `train_ms exponent` their slope. The same holds for `generate_ms`.
    """
    points = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    found = []
    for family in dict.fromkeys(point["family"] for point in points):
        own = [point for point in points if point["family"] == family]
        run: Run = {"question": "lengths", "variant": family, "seed": 1}
        for name in ("train_ms", "generate_ms"):
            run |= {name: [point[name] for point in own], f"{name} exponent": slope(own, name)}
        found.append(run)
    return found


def measure(quantity: str, runs: Sequence[Run]) -> list[float]:
    """Return the values of a quantity, one for each seed, from the recorded runs of its question.

    Raises:
        KeyError: No run has the variant or the value.
    """
    variants = {run["variant"] for run in runs}

    def by_seed(term: str) -> dict[int, float]:
        variant, _, key = (term, "", "loss") if term in variants else term.rpartition("/")
        values = {run["seed"]: _value(run, key) for run in runs if run["variant"] == variant}
        if not values:
            raise KeyError(f"no runs of {term!r}")
        return dict(sorted(values.items()))

    for sign, combine in ((" - ", operator.sub), (" / ", operator.truediv)):
        if quantity not in variants and sign in quantity:
            left, right = map(by_seed, quantity.split(sign))
            return [round(combine(value, right[seed]), 8) for seed, value in left.items() if seed in right]
    return list(by_seed(quantity).values())


def _value(run: Run, key: str) -> float:
    """Return a value of a run, or the mean of entries a to b of a list, counted from 1: `KEY[a:b]`."""
    name, *part = re.split(r"\[|:|]", key)
    return statistics.fmean(run[name][int(part[0]) - 1 : int(part[1])]) if part else float(run[name])
