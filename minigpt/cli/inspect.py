"""`minigpt inspect`."""

import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from minigpt.cli.excerpt import FileOption, TextOption, ValOption, choose_excerpt
from minigpt.cli.options import CheckpointOption, EncodingOption, RunArgument, UnknownOption
from minigpt.cli.output import check_writable, load_torch, notice, waiting, write_bytes
from minigpt.errors import UserError, escape

if TYPE_CHECKING:
    from minigpt.storage.checkpoint import Checkpoint
    from minigpt.viewer.film import Log

MAX_SIZE = 16_000_000
"""Size of a page in bytes above which --force is required."""


def inspect(
    run: RunArgument = "last",
    text: TextOption = None,
    file: FileOption = None,
    val: ValOption = None,
    compare: Annotated[str | None, Option(help="Add another run with the same vocabulary.", metavar="RUN")] = None,
    steps: Annotated[
        str | None,
        Option(help="Steps of the film. Default: where predictions change most. none: no film.", metavar="N,...|none"),
    ] = None,
    layer: Annotated[
        int | None, Option(help="Open the page at a head of this layer. The first is 0.", metavar="N")
    ] = None,
    head: Annotated[int | None, Option(help="Open the page at this head. The first is 0.", metavar="N")] = None,
    exact: Annotated[bool, Option("--exact", help="Keep float32 weights. Default: round them to 8 bits.")] = False,
    out: Annotated[Path, Option("--out", "-o", help="File to write.", metavar="FILE")] = Path("inspect.html"),
    open_: Annotated[bool, Option("--open", help="Open the page in a browser.")] = False,
    force: Annotated[bool, Option("--force", help="Replace existing files; allow pages above 16 MB.")] = False,
    checkpoint: CheckpointOption = None,
    unknown: UnknownOption = "error",
    encoding: EncodingOption = "utf-8",
) -> None:
    """Write a page in which your model runs: type, and see what it predicts and why.

    The page is one file and works offline. It contains the weights of the model at up to 12 steps, rounded to
    8 bits. A model can have at most 12 million weights.

    Examples:
      minigpt inspect --open
      minigpt inspect mine --text "To be, or not to be" --out page.html
      minigpt inspect mine --compare other       two models on the same text
      minigpt inspect mine --steps 0,100,1000    a film of these steps and the last
      minigpt inspect mine --layer 2 --head 3    at this head, where it matters most
    """
    load_torch()
    from minigpt.interpret.excerpt import validation_split
    from minigpt.storage.checkpoint import load_checkpoint
    from minigpt.viewer.film import most_moments
    from minigpt.viewer.page import Start, build_page, check_size

    check_writable(out, read=file, force=force)
    loaded = load_checkpoint(run, checkpoint)
    compared = [] if compare is None else [load_checkpoint(compare)]
    for model in (loaded, *compared):
        check_size(model, exact)  # before anything is computed
    limit = most_moments(loaded.weights, [model.weights for model in compared], exact)
    log = notice if steps is None else None
    moments = _moments(loaded, steps, limit, log)
    excerpt = choose_excerpt(loaded, text, file, val, unknown, encoding, whole_lines=True)
    page = waiting("computing the page")(build_page)(
        loaded,
        excerpt,
        moments=moments,
        others=compared,
        split=validation_split(loaded),
        start=Start(layer, head, at_end=text is not None or file is not None),
        exact=exact,
        log=log,
    ).encode()
    _write_page(page, out, force, open_)


def _write_page(page: bytes, out: Path, force: bool, open_: bool) -> None:
    """Write a page of at most `MAX_SIZE`, or of any size with `force`, and say so. Open it with `open_`."""
    size = f"{len(page) / 1e6:.2f} MB"
    if len(page) > MAX_SIZE and not force:
        raise UserError(
            f"the page takes {size}, more than 16 MB; leave out --exact or --compare, use --steps none, or add --force"
        )
    wrote = "replaced" if out.exists() else "wrote"
    write_bytes(page, out)
    if str(out) == "-":
        return
    is_open = open_ and webbrowser.open(out.absolute().as_uri())
    notice(f"{wrote} {escape(out)}, {size}" + ("" if is_open else "; open it in a browser"))


def _moments(loaded: "Checkpoint", value: str | None, limit: int, log: "Log") -> list["Checkpoint"]:
    """Return the moments of the run that the page may show, in order: those that --steps names, or else most."""
    from minigpt.paths import run_of
    from minigpt.storage.runs import saved_steps
    from minigpt.viewer.film import MOST_LOADED, load_moments, thin

    run, opened = run_of(loaded.path), loaded.metadata.step
    if value == "none" or (run is None and value is None):
        return []
    if run is None:
        raise UserError("--steps needs a run, not a checkpoint folder")
    saved = sorted({*saved_steps(run), opened})  # it may be quarantined
    if len(saved) == 1 and not loaded.metadata.imported:
        notice("no film: the run has the weights of only one step (train.frames keeps more, in longer runs)")
    elif len(saved) > 1 and limit < 2:
        notice("no film: the weights of another step do not fit into the page")
    if value is None:
        chosen = {saved[0], opened, *thin(saved, MOST_LOADED)} if limit > 1 else set()
    else:
        chosen = {*_integers("--steps", value), opened}
        if missing := sorted(chosen - {*saved}):
            raise UserError(f"--steps: no weights of step {missing[0]}; the run has {', '.join(map(str, saved))}")
        if len(chosen) > max(1, limit):
            room = f"the page has room for {limit} steps, with the opened one"
            raise UserError(f"--steps: {room}, and {len(chosen)} are named")
    return load_moments(run, loaded, sorted(chosen), log)


def _integers(option: str, value: str) -> list[int]:
    try:
        return [int(part) for part in value.split(",")]
    except ValueError as error:
        raise UserError(f"{option} {value}: expected steps, such as 0,100,1000, or none") from error
