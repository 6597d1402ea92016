"""`minigpt inspect`."""

import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from minigpt.cli.options import (
    CheckpointOption,
    EncodingOption,
    RunArgument,
    UnknownOption,
)
from minigpt.cli.output import check_writable, notice, refuse_trained_on, write_bytes
from minigpt.errors import UserError, escape

if TYPE_CHECKING:
    from minigpt.storage.checkpoint import Checkpoint
from minigpt.cli.excerpt import FileOption, MaxCharsOption, TextOption, ValOption, chosen_excerpt, notice_left_out

ABLATED = 8192
"""Tokens of the validation split over which the loss without a head is measured."""


def inspect(
    run: RunArgument = "last",
    text: TextOption = None,
    file: FileOption = None,
    val: ValOption = None,
    compare: Annotated[str | None, Option(help="Another run, to see the same text beside.", metavar="RUN")] = None,
    steps: Annotated[
        str | None, Option(help="Show how heads formed, over these checkpoints of the run.", metavar="all|N,...")
    ] = None,
    ablate: Annotated[bool, Option("--ablate", help="Measure what the loss is without each head.")] = False,
    detail: Annotated[
        bool, Option("--detail", help="Add a worked example with all numbers, for 64 tokens at most.")
    ] = False,
    layers: Annotated[str | None, Option(help="Only these layers, counted from 0.", metavar="N,...")] = None,
    out: Annotated[Path, Option("--out", "-o", help="File to write.", metavar="F")] = Path("inspect.html"),
    open_: Annotated[bool, Option("--open", help="Show the page in the browser.")] = False,
    force: Annotated[bool, Option("--force", help="Write a page of more than 16 MB.")] = False,
    checkpoint: CheckpointOption = None,
    unknown: UnknownOption = "error",
    encoding: EncodingOption = "utf-8",
    max_chars: MaxCharsOption = None,
) -> None:
    """Write one web page, complete in itself, to explore what a model does with a text."""
    from tqdm import tqdm

    from minigpt.storage.checkpoint import load_checkpoint
    from minigpt.viewer import inspect_page
    from minigpt.viewer.views import STAGED

    check_writable(out, read=file)
    loaded = load_checkpoint(run, checkpoint)
    refuse_trained_on(loaded.config.data, out)
    if detail and max_chars is None:
        max_chars = STAGED
    passage = chosen_excerpt(loaded, text, file, val, unknown, encoding, max_chars)
    notice_left_out(passage)
    other = load_checkpoint(compare) if compare else None
    with tqdm(unit="head", disable=None if ablate else True, leave=False) as bar:

        def tell(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        page = inspect_page(
            loaded, passage,
            layers=_numbers("--layers", layers) if layers is not None else None,
            detail=detail,
            ablate=loaded.validation[:ABLATED] if ablate else None,
            steps=(load_checkpoint(path) for path in _film(loaded, steps)),  # one at a time
            compare=other, force=force, say=notice,
            progress=tell,
        )  # fmt: skip
    write_bytes(page.encode(), out)
    notice(f"wrote {escape(out)}, {len(page.encode()) / 1e6:.2f} MB; it needs no network and can be mailed")
    if open_:
        webbrowser.open(out.absolute().as_uri())


def _film(loaded: "Checkpoint", steps: str | None) -> list[Path]:
    """Return the checkpoints of the run that a film is made of. Raises UserError for a step that is not there."""
    from minigpt.storage.runs import checkpoint_steps, step_folder

    if steps is None:
        return []
    folder = loaded.path.parent.parent
    there = checkpoint_steps(folder)
    if not there:
        raise UserError("--steps: a checkpoint folder by itself has no others; name the run")
    chosen = _spread(there) if steps == "all" else _numbers("--steps", steps)
    if steps == "all" and len(chosen) < len(there):
        notice(f"a film has {len(chosen)} checkpoints at most: these are spread over the {len(there)} there are")
    for step in chosen:
        if step not in there:
            raise UserError(f"--steps: there is no checkpoint of step {step}, only {', '.join(map(str, there))}")
    if len(chosen) == 1:
        notice("a film of one step: --set train.keep_last=20 makes a run keep more of its checkpoints")
    return [step_folder(folder, step) for step in sorted(set(chosen))]


def _spread(steps: list[int]) -> list[int]:
    """Return as many of the steps as a film can have, from the first to the last."""
    from minigpt.viewer.views import MOST_STEPS

    count = min(MOST_STEPS, len(steps))
    return sorted({steps[round(at * (len(steps) - 1) / max(1, count - 1))] for at in range(count)})


def _numbers(option: str, given: str) -> list[int]:
    try:
        return [int(part) for part in given.split(",")]
    except ValueError as error:
        raise UserError(f"{option} {given}: expected whole numbers separated by commas") from error
