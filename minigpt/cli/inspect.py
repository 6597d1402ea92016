"""`minigpt inspect`."""

import webbrowser
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from minigpt.cli.excerpt import (
    FileOption,
    TextOption,
    ValOption,
    choose_excerpt,
    validation_split,
)
from minigpt.cli.input import load_run
from minigpt.cli.options import CheckpointOption, EncodingOption, ForceOption, RunArgument, UnknownOption
from minigpt.cli.output import check_writable, notice, write_bytes
from minigpt.errors import UserError, escape

if TYPE_CHECKING:
    from minigpt.storage.checkpoint import Checkpoint

MAX_STEPS = 8
"""Maximum number of checkpoints that --steps adds. Each costs its weights."""


def inspect(
    run: RunArgument = "last",
    text: TextOption = None,
    file: FileOption = None,
    val: ValOption = None,
    compare: Annotated[str | None, Option(help="Add another run with the same vocabulary.", metavar="RUN")] = None,
    steps: Annotated[
        str | None,
        Option(help="Add other checkpoints of the run, at most 8: all (evenly spaced) or steps.", metavar="all|N,..."),
    ] = None,
    layer: Annotated[
        int | None, Option(help="Open the page at a head of this layer. The first is 0.", metavar="N")
    ] = None,
    head: Annotated[int | None, Option(help="Open the page at this head. The first is 0.", metavar="N")] = None,
    exact: Annotated[bool, Option("--exact", help="Keep float32 weights. Default: round them to 8 bits.")] = False,
    out: Annotated[Path, Option("--out", "-o", help="File to write.", metavar="FILE")] = Path("inspect.html"),
    open_: Annotated[bool, Option("--open", help="Open the page in a browser.")] = False,
    force: ForceOption = False,
    checkpoint: CheckpointOption = None,
    unknown: UnknownOption = "error",
    encoding: EncodingOption = "utf-8",
) -> None:
    """Write a page in which your model runs: type, and see what it predicts and why.

    The page is one file and works offline. It contains the weights of the model, rounded to 8 bits: at most
    12 million.

    Examples:
      minigpt inspect --open
      minigpt inspect mine --text "To be, or not to be" --out page.html
      minigpt inspect mine --compare other       two models on the same text
      minigpt inspect mine --steps all           how the heads formed
      minigpt inspect mine --layer 2 --head 3    at this head, where it matters most
    """
    from minigpt.viewer.page import Start, build_page, check_size

    check_writable(out, read=file, force=force)
    loaded = load_run(run, checkpoint, [out])
    compared = [] if compare is None else [load_run(compare, None, [out])]
    for model in (loaded, *compared):
        check_size(model, exact)  # before anything is computed
    excerpt = choose_excerpt(loaded, text, file, val, unknown, encoding, whole_lines=True)
    earlier = (load_run(path, None, [out]) for path in _checkpoints(loaded, steps) if path != loaded.path)
    page = build_page(
        loaded,
        excerpt,
        others=chain(earlier, compared),
        split=validation_split(loaded),
        start=Start(layer, head, at_end=text is not None or file is not None),
        exact=exact,
    ).encode()
    wrote = "replaced" if out.exists() else "wrote"
    write_bytes(page, out)
    notice(f"{wrote} {escape(out)}, {len(page) / 1e6:.2f} MB" + ("" if open_ else "; open it in a browser"))
    if open_:
        webbrowser.open(out.absolute().as_uri())


def _checkpoints(loaded: "Checkpoint", steps: str | None) -> list[Path]:
    """Return the checkpoint folders that --steps names. Raises UserError if one is missing."""
    from minigpt.storage.runs import checkpoint_steps, step_folder

    if steps is None:
        return []
    run = loaded.path.parent.parent
    existing = checkpoint_steps(run)
    if not existing:
        raise UserError("--steps needs a run, not a checkpoint folder")
    try:
        wanted = existing if steps == "all" else sorted({int(step) for step in steps.split(",")})
    except ValueError as error:
        raise UserError(f"--steps {steps}: expected whole numbers separated by commas") from error
    if missing := set(wanted) - set(existing):
        listed = ", ".join(map(str, existing))
        raise UserError(f"--steps: no checkpoint at step {min(missing)}; the run has {listed}")
    selected = _spread(wanted)
    if len(selected) < len(wanted):
        notice(f"adding {len(selected)} of {len(wanted)} checkpoints, evenly spaced")
    if len(existing) == 1:
        notice("the run has one checkpoint; train with --set train.keep_last=20 --set train.save_every=50")
    return [step_folder(run, step) for step in selected]


def _spread(steps: list[int]) -> list[int]:
    """Return as many evenly spaced steps as the page can show, including the first and the last."""
    count = min(MAX_STEPS, len(steps))
    return sorted({steps[round(i * (len(steps) - 1) / max(1, count - 1))] for i in range(count)})
