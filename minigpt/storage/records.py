"""Records beside the checkpoints of a run: its starts (environment.jsonl) and its curves (metrics.jsonl)."""

import json
import platform
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from minigpt.errors import UserError
from minigpt.files import open_within, read_within, write_atomically
from minigpt.paths import METRICS
from minigpt.storage.metadata import LIMITS, Environment

LONGEST_LINE = 1 << 20
"""Maximum bytes of metrics.jsonl to read as one line. The file may come from a stranger."""


def read_starts(run: Path) -> list[dict[str, Any]]:
    """Return the lines of environment.jsonl, without damaged ones. The file may come from a stranger."""
    starts: list[Any] = []
    with suppress(UserError):
        for line in read_within(run / "environment.jsonl", run, LIMITS["environment.jsonl"]).splitlines():
            with suppress(ValueError, RecursionError):
                starts.append(json.loads(line))
    return [start for start in starts if isinstance(start, dict)]


def read_metrics(run: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of metrics.jsonl, without damaged ones. The file may come from a stranger."""
    with suppress(UserError), open_within(run / METRICS, run) as file:
        while line := file.readline(LONGEST_LINE):
            with suppress(ValueError, RecursionError):
                if isinstance(entry := json.loads(line), dict):
                    yield entry


def record_start(run: Path, step: int, environment: Environment, facts: Mapping[str, Any]) -> None:
    """Append a line with `facts` to environment.jsonl: how the run was started or resumed at a step."""
    path = run / "environment.jsonl"
    earlier = read_within(path, run, LIMITS[path.name]).decode("utf-8", "replace") if path.exists() else ""
    start = {
        "step": step,
        "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        **facts,
        "host": platform.node(),
        "system": platform.platform(),
        "python": platform.python_version(),
        **environment.model_dump(),
    }
    write_atomically(path, f"{earlier}{json.dumps(start)}\n")
