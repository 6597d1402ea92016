"""`minigpt inspect`."""

import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from minigpt.cli.excerpt import (
    FileOption,
    MaxTokensOption,
    TextOption,
    ValOption,
    choose_excerpt,
    notice_skipped,
)
from minigpt.cli.hints import checkpoint_argument
from minigpt.cli.input import validation_tokens
from minigpt.cli.options import CheckpointOption, EncodingOption, RunArgument, UnknownOption
from minigpt.cli.output import check_writable, notice, refuse_trained_on, write_bytes
from minigpt.errors import UserError, escape

if TYPE_CHECKING:
    from minigpt.storage.checkpoint import Checkpoint

ABLATION_TOKENS = 8192
"""Number of tokens of the validation split that --ablate uses."""
LARGE, MAX_SIZE = 4_000_000, 16_000_000
"""Page sizes in bytes. Above LARGE, suggest a smaller page. Above MAX_SIZE, require --force."""


def inspect(
    run: RunArgument = "last",
    text: TextOption = None,
    file: FileOption = None,
    val: ValOption = None,
    compare: Annotated[
        str | None, Option(help="Add a comparison with another run on the same text.", metavar="RUN")
    ] = None,
    steps: Annotated[
        str | None,
        Option(help="Show how heads form during training, at these checkpoints of the run.", metavar="all|N,..."),
    ] = None,
    ablate: Annotated[bool, Option("--ablate", help="Measure the loss without each head.")] = False,
    detail: Annotated[
        bool, Option("--detail", help="Add a worked example with all numbers, for at most 64 tokens.")
    ] = False,
    layer: Annotated[int | None, Option(help="Open the page at this layer.", metavar="N")] = None,
    head: Annotated[int | None, Option(help="Open the page at this head. The first is 0.", metavar="N")] = None,
    layers: Annotated[str | None, Option(help="Show only these layers. The first is 0.", metavar="N,...")] = None,
    out: Annotated[Path, Option("--out", "-o", help="File to write.", metavar="FILE")] = Path("inspect.html"),
    open_: Annotated[bool, Option("--open", help="Open the page in a browser.")] = False,
    force: Annotated[bool, Option("--force", help="Replace existing files; allow pages above 16 MB.")] = False,
    checkpoint: CheckpointOption = None,
    unknown: UnknownOption = "error",
    encoding: EncodingOption = "utf-8",
    max_tokens: MaxTokensOption = None,
) -> None:
    """Write an interactive page that shows what a model computes for a text.

    The page is one file and works offline.

    Examples:
      minigpt inspect --open
      minigpt inspect mine --text "To be, or not to be" --detail --out page.html
      minigpt inspect mine --compare other --steps all
      minigpt inspect mine --text "To be" --layer 2 --head 3   at this head, and the end of the text
    """
    from tqdm import tqdm

    from minigpt.storage.checkpoint import load_checkpoint
    from minigpt.viewer.page import build_page
    from minigpt.viewer.views import MAX_STAGES, Start

    check_writable(out, read=file, force=force)
    loaded = load_checkpoint(run, checkpoint)
    refuse_trained_on(loaded.config.data, out)
    if detail and max_tokens is None:
        max_tokens = MAX_STAGES
    excerpt = choose_excerpt(loaded, text, file, val, unknown, encoding, max_tokens)
    notice_skipped(excerpt)
    with tqdm(unit="head", disable=None if ablate else True, leave=False) as bar:

        def show_progress(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        page = build_page(
            loaded,
            excerpt,
            layers=_integers("--layers", layers) if layers is not None else None,
            detail=detail,
            ablation_tokens=validation_tokens(loaded)[:ABLATION_TOKENS] if ablate else None,
            steps=(load_checkpoint(path) for path in _checkpoints(loaded, steps)),  # loads one at a time
            compare=load_checkpoint(compare) if compare else None,
            start=Start(layer, head, None if text is None and file is None else len(excerpt.ids) - 1),
            argument=checkpoint_argument(loaded.path),
            progress=show_progress,
        ).encode()
    size = f"{len(page) / 1e6:.2f} MB"
    if len(page) > MAX_SIZE and not force:
        raise UserError(f"the page takes {size}, more than 16 MB; use fewer --layers, a lower --max-tokens, or --force")
    wrote = "replaced" if out.exists() else "wrote"
    write_bytes(page, out)
    notice(
        f"{wrote} {escape(out)}, {size}"
        + ("; to shrink it, use fewer --layers or a lower --max-tokens" * (len(page) > LARGE))
    )
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
    selected = _spread(existing) if steps == "all" else _integers("--steps", steps)
    if steps == "all" and len(selected) < len(existing):
        notice(f"showing {len(selected)} of {len(existing)} checkpoints, evenly spaced")
    for step in selected:
        if step not in existing:
            raise UserError(f"--steps: no checkpoint at step {step}; the run has {', '.join(map(str, existing))}")
    if len(selected) == 1:
        notice("the run has one checkpoint; train with --set train.keep_last=20 --set train.save_every=50")
    return [step_folder(run, step) for step in sorted(set(selected))]


def _spread(steps: list[int]) -> list[int]:
    """Return as many evenly spaced steps as the page can show, including the first and the last."""
    from minigpt.viewer.views import MAX_STEPS

    count = min(MAX_STEPS, len(steps))
    return sorted({steps[round(i * (len(steps) - 1) / max(1, count - 1))] for i in range(count)})


def _integers(option: str, value: str) -> list[int]:
    try:
        return [int(part) for part in value.split(",")]
    except ValueError as error:
        raise UserError(f"{option} {value}: expected whole numbers separated by commas") from error
