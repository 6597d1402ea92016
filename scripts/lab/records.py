"""The recorded runs of all questions: one JSON object per line, in one file."""

import json
from pathlib import Path
from typing import Any

LAB = Path(__file__).resolve().parents[2] / "docs/project/lab"
"""The pages of the lab notebook, their figures and the recorded runs."""
RUNS = LAB / "runs.jsonl"
Run = dict[str, Any]


def read(path: Path = RUNS) -> dict[str, list[Run]]:
    """Return the recorded runs by question."""
    found: dict[str, list[Run]] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        run = json.loads(line)
        found.setdefault(run["question"], []).append(run)
    return found
