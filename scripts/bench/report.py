"""Results of a benchmark as a JSON document and as tables."""

import platform
import statistics
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timezone
from typing import Any

from minigpt import __version__

Round = dict[str, float]
"""The measurements of one round: keys of COLUMNS, and others, such as a checksum of the result."""
Report = dict[str, Any]
"""The results of a benchmark, as `--json` prints them."""

COLUMNS: dict[str, tuple[str, Callable[[float], str]]] = {
    "ms_per_step": ("ms/step", lambda value: f"{value:,.1f}"),
    "ms_per_character": ("ms/character", lambda value: f"{value:,.2f}"),
    "characters_per_second": ("characters/s", lambda value: f"{value:,.0f}"),
    "flops_per_second": ("GFLOP/s", lambda value: f"{value / 1e9:,.1f}"),
    "share_of_matmul": ("of matmul", lambda value: f"{value:.1%}"),
    "megabytes_per_second": ("MB/s", lambda value: f"{value:,.1f}"),
    "scan_megabytes_per_second": ("scan only, MB/s", lambda value: f"{value:,.1f}"),
    "memory_bytes": ("peak memory", lambda value: f"{value / 1e6:,.0f} MB"),
}
"""The columns of a table: the heading and format of each measurement."""


def summarize(rounds: Sequence[Round]) -> Round:
    """Return the median of each column over the rounds, but the maximum for memory."""
    return {
        key: (max if key == "memory_bytes" else statistics.median)(values[key] for values in rounds)
        for key in COLUMNS
        if key in rounds[0]
    }


def report(benchmark: str, settings: dict[str, Any], comparisons: list[dict[str, Any]], device: str) -> Report:
    """Return the results of a benchmark with a description of the machine."""
    import torch

    from minigpt.model.device import processor
    from minigpt.world import available_cores

    return {
        "benchmark": benchmark,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": {
            "processor": processor(torch.device(device)),
            "cores": available_cores(),
            "system": platform.platform(),
            "python": platform.python_version(),
            "torch": str(torch.__version__),
            "minigpt": __version__,
        },
        "settings": settings,
        "comparisons": comparisons,
    }


def tables(results: Report) -> Iterator[tuple[list[str], list[list[str]], list[str]]]:
    """Yield the header and rows of a table for each comparison, and the lines to print below it."""
    for comparison in results["comparisons"]:
        sides = comparison["sides"]
        columns = [key for key in COLUMNS if any(key in side["summary"] for side in sides.values())]
        head = [comparison["what"], *(COLUMNS[key][0] for key in columns)]
        rows = [
            [name, *(COLUMNS[key][1](side["summary"][key]) if key in side["summary"] else "" for key in columns)]
            for name, side in sides.items()
        ]
        first = next(iter(sides))
        lines = [
            f"{first} is {ratio['median']:.2f} x as fast as {other} (min {ratio['min']:.2f}, "
            f"max {ratio['max']:.2f}, rounds {len(ratio['rounds'])})"
            for other, ratio in comparison["ratios"].items()
        ]
        yield head, rows, lines + [f"{name}: {side['about']}" for name, side in sides.items()]
