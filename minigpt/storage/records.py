"""What a run writes down beside its checkpoints: its starts (environment.jsonl) and its curves (metrics.jsonl)."""

import json
import platform
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from minigpt.errors import UserError
from minigpt.files import open_within, read_within, write_atomically
from minigpt.storage.metadata import LIMITS, Environment

LONGEST_LINE = 1 << 20
"""The most to read of a line of metrics.jsonl, in bytes. The file may come from a stranger."""


def read_starts(run: Path) -> list[dict[str, Any]]:
    """Return the lines of environment.jsonl, without damaged ones. The file may come from a stranger."""
    starts: list[Any] = []
    with suppress(UserError):
        for line in read_within(run / "environment.jsonl", run, LIMITS["environment.jsonl"]).splitlines():
            with suppress(ValueError, RecursionError):
                starts.append(json.loads(line))
    return [start for start in starts if isinstance(start, dict)]


def last_start(run: Path, step: int) -> str:
    """Return the date of the last start before a checkpoint, such as "25 November 2026". Return "" if unknown."""
    for start in reversed(read_starts(run)):
        with suppress(ValueError, KeyError, TypeError):
            started = datetime.fromisoformat(start["started"])
            if start["step"] < step:
                return f"{started.day} {started:%B %Y}"
    return ""


def record_start(
    run: Path,
    step: int,
    command: Sequence[str],
    environment: Environment,
    processes: int = 1,
    matmul_speed: float | None = None,
    steps: int | None = None,
) -> None:
    """Append a line to environment.jsonl that records how the run was started or resumed.

    A resume may change the duration of the run, `steps`. `matmul_speed` is the speed of matrix products in FLOP/s, from
    which minigpt chose settings.
    """
    path = run / "environment.jsonl"
    earlier = read_within(path, run, LIMITS[path.name]).decode("utf-8", "replace") if path.exists() else ""
    start = {
        "step": step,
        "steps": steps,
        "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": list(command),
        "processes": processes,
        "host": platform.node(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "matmul_flops_per_second": matmul_speed,
        **environment.model_dump(),
    }
    write_atomically(path, f"{earlier}{json.dumps(start)}\n")


def read_log(run: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of metrics.jsonl, without damaged ones. The file may come from a stranger."""
    with suppress(UserError, OSError), open_within(run / "metrics.jsonl", run) as file:
        while line := file.readline(LONGEST_LINE):
            with suppress(ValueError, RecursionError):
                entry = json.loads(line)
                if isinstance(entry, dict):
                    yield entry
