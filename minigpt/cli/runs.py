"""`minigpt runs`."""

import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from minigpt.cli.options import JsonOption
from minigpt.cli.output import json_text, notice, table, write
from minigpt.errors import RunNotFoundError, UserError
from minigpt.paths import RUNS

CORPUS_WIDTH = 40


def runs(
    verify: Annotated[bool, Option("--verify", help="Check every file in every run.", metavar="")] = False,
    as_json: JsonOption = False,
) -> None:
    """List the runs in runs/, the most recently trained last."""
    from minigpt.storage.runs import all_runs

    if verify:
        _verify_runs(as_json)
        return
    summaries = [_summary(run) for run in all_runs()]
    if as_json:
        write(json_text(summaries))
        return
    if not summaries:
        raise RunNotFoundError(f"there are no runs in {RUNS.absolute()}")
    table(("run", "corpus", "parameters", "step", "best loss", "age"), [_row(**summary) for summary in summaries])


def _summary(run: Path) -> dict[str, Any]:
    """Return a summary of a run. Values are None if the newest checkpoint is missing or damaged."""
    from minigpt.storage.metadata import read_metadata
    from minigpt.storage.runs import checkpoint_steps, last_trained, step_folder

    steps, metadata = checkpoint_steps(run), None
    with suppress(UserError):
        metadata = read_metadata(step_folder(run, steps[-1])) if steps else None
    return {
        "name": run.name,
        "corpus": metadata.corpus if metadata else None,
        "parameters": metadata.parameters if metadata else None,
        "step": steps[-1] if steps else None,
        "best_loss": metadata.state.best_loss if metadata else None,
        "last_trained": last_trained(run),
    }


def _row(
    name: str,
    corpus: str | None,
    parameters: int | None,
    step: int | None,
    best_loss: float | None,
    last_trained: float,
) -> tuple[str, ...]:
    return (
        name,
        _shorten(corpus or ""),
        "" if parameters is None else f"{parameters:,}",
        "no checkpoint" if step is None else str(step),
        "" if best_loss is None else f"{best_loss:.4f}",
        _age(time.time() - last_trained),
    )


def _verify_runs(as_json: bool) -> None:
    from minigpt.storage.verify import verify_runs

    checked = list(verify_runs())
    if as_json:
        write(json_text([asdict(item) for item in checked]))
    elif not checked:
        notice(f"there are no runs in {RUNS.absolute()}")
    else:
        table(("run", "file", ""), [(item.run, item.name, item.problem or "intact") for item in checked])
    if damaged := sum(item.problem is not None for item in checked):
        raise UserError(f"{damaged} of {len(checked)} files are damaged")


def _shorten(corpus: str) -> str:
    """Shorten the name of a corpus to fit a column."""
    first, *others = corpus.split(" + ")
    name = f"{first} + {len(others)} more" if others and len(corpus) > CORPUS_WIDTH else corpus
    return name if len(name) <= CORPUS_WIDTH else f"...{name[3 - CORPUS_WIDTH :]}"


def _age(seconds: float) -> str:
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"
