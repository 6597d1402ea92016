"""`minigpt runs`."""

import time
from dataclasses import asdict
from typing import Annotated

from typer import Option

from minigpt.cli.options import JsonOption
from minigpt.cli.output import json_text, notice, table, write
from minigpt.errors import UserError


def runs(
    verify: Annotated[bool, Option("--verify", help="Check all that the runs keep on disk.")] = False,
    as_json: JsonOption = False,
) -> None:
    """List the runs in runs/, the one touched last at the end."""
    from minigpt.storage.runs import RUNS, summaries

    if verify:
        _verify_runs(as_json)
        return
    found = list(summaries())
    if as_json:
        write(json_text([asdict(row) for row in found]))
        return
    if not found:
        raise UserError(f"there is no run in {RUNS.absolute()} yet; 'minigpt train' starts one")
    rows = [
        (
            row.name,
            _in_short(row.corpus),
            f"{row.parameters:,}" if row.parameters is not None else "",
            str(row.step) if row.step is not None else "no checkpoint",
            f"{row.best_loss:.4f}" if row.best_loss is not None else "",
            _age(time.time() - row.touched),
        )
        for row in found
    ]
    table(("run", "corpus", "parameters", "step", "best loss", "age"), rows)


def _verify_runs(as_json: bool) -> None:
    from minigpt.storage.runs import RUNS
    from minigpt.storage.verify import verify_runs

    found = list(verify_runs())
    if as_json:
        write(json_text([asdict(one) for one in found]))
    elif not found:
        notice(f"there is no run in {RUNS.absolute()}: nothing to check")
    else:
        table(("run", "what", ""), [(one.run, one.what, one.problem or "intact") for one in found])
    if bad := sum(one.problem is not None for one in found):
        raise UserError(f"{bad} of {len(found)} are not as they were written")


def _in_short(corpus: str) -> str:
    """Return what a run was trained on, fit for a column."""
    first, *others = corpus.split(" + ")
    name = f"{first} + {len(others)} more" if others and len(corpus) > 40 else corpus
    return name if len(name) <= 40 else f"...{name[-37:]}"


def _age(seconds: float) -> str:
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"
