"""`minigpt inspect`."""

import webbrowser
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from minigpt.cli.excerpt import FileOption, TextOption, ValOption, choose_excerpt
from minigpt.cli.heads import print_heads
from minigpt.cli.options import EncodingOption, ForceOption, RunArgument, UnknownOption, complete_run
from minigpt.cli.output import check_writable, load_torch, notice, waiting, write_bytes
from minigpt.errors import UserError, escape

if TYPE_CHECKING:
    from minigpt.interpret.excerpt import Excerpt
    from minigpt.storage.checkpoint import Checkpoint
    from minigpt.viewer.page import Start

WithOption = Annotated[
    str | None,
    Option("--with", help="Add a run with the same vocabulary.", metavar="RUN", autocompletion=complete_run),
]
StepsOption = Annotated[
    str | None,
    Option(help="Steps of the film. Default: where predictions change most. none: no film.", metavar="N,...|none"),
]
LayerOption = Annotated[
    int | None, Option(help="Open the page at a head of this layer, or print only its heads.", metavar="N")
]
HeadOption = Annotated[int | None, Option(help="Open the page at this head, or print only this head.", metavar="N")]
OutOption = Annotated[Path | None, Option("--out", "-o", help="File to write. Default: inspect.html.", metavar="FILE")]
OpenOption = Annotated[bool, Option("--open", help="Open the page in a browser.")]
TableOption = Annotated[bool, Option("--table", help="Print a table of the heads instead of writing a page.")]
ScoresOption = Annotated[bool, Option("--json", help="Print all statistics of the heads as JSON instead.")]


def inspect(
    run: RunArgument = "last",
    text: TextOption = None,
    file: FileOption = None,
    val: ValOption = None,
    with_: WithOption = None,
    steps: StepsOption = None,
    layer: LayerOption = None,
    head: HeadOption = None,
    out: OutOption = None,
    open_: OpenOption = False,
    force: ForceOption = False,
    as_table: TableOption = False,
    as_json: ScoresOption = False,
    unknown: UnknownOption = "error",
    encoding: EncodingOption = "utf-8",
) -> None:
    """Write a page in which your model runs: type, and see what it predicts and why.

    The page is one file and works offline. It contains the model at up to 12 steps, with weights rounded to 8 bits.
    Layers and heads count from 0.

    Examples:
      minigpt inspect --open
      minigpt inspect mine --text "To be, or not to be" --out page.html
      minigpt inspect mine --with mine@400       two models on the same text
      minigpt inspect mine --steps 0,100,1000    a film of these steps and the best
      minigpt inspect mine --layer 2 --head 3    at this head, where it matters most
      minigpt inspect mine --table               what each head attends to, in the terminal
    """
    page = {"--out": out, "--open": open_, "--force": force, "--with": with_, "--steps": steps}
    given = [name for name, value in {"--table": as_table, "--json": as_json, **page}.items() if value]
    if (is_printed := as_table or as_json) and len(given) > 1:
        raise UserError(f"{given[0]} and {given[1]} are mutually exclusive")
    out = out or Path("inspect.html")
    check_writable(None if is_printed else out, force)
    load_torch()
    from minigpt.storage.checkpoint import load_checkpoint
    from minigpt.viewer.page import Start

    loaded = load_checkpoint(run)
    choose = partial(choose_excerpt, loaded, text, file, val, unknown, encoding)
    if is_printed:
        print_heads(loaded, choose(), layer, head, (text, file, val) != (None, None, None), as_json)
    else:
        start = Start(layer, head, at_end=(text, file) != (None, None))
        _write_page(loaded, choose, with_, steps, start, out, open_)


def _write_page(
    loaded: "Checkpoint",
    choose: "Callable[..., Excerpt]",
    other: str | None,
    steps: str | None,
    start: "Start",
    out: Path,
    open_: bool,
) -> None:
    """Write the page to `out`, and say so. Open it if `open_`."""
    from minigpt.interpret.excerpt import validation_split
    from minigpt.storage.checkpoint import load_checkpoint
    from minigpt.viewer.film import Film
    from minigpt.viewer.page import build_page, check_size

    others = [] if other is None else [load_checkpoint(other)]
    check_size(loaded, *others)  # before anything is computed
    with waiting("checking the steps of the film"):
        film = Film() if steps == "none" else Film.load(loaded, others, _named(steps), notice)
    excerpt, split = choose(whole_lines=True), validation_split(loaded)
    with waiting("computing the page"):
        page = build_page(loaded, excerpt, film=film, others=others, split=split, start=start).encode()
    wrote = "replaced" if out.exists() else "wrote"
    write_bytes(page, out)
    if str(out) == "-":
        return
    is_open = open_ and webbrowser.open(out.absolute().as_uri())
    notice(f"{wrote} {escape(out)}, {len(page) / 1e6:.2f} MB" + ("" if is_open else "; open it in a browser"))


def _named(steps: str | None) -> list[int] | None:
    """Return the steps that --steps names."""
    try:
        return None if steps is None else [int(part) for part in steps.split(",")]
    except ValueError as error:
        raise UserError(f"--steps {steps}: expected steps, such as 0,100,1000, or none") from error
