"""The options that name a text to look at, and what commands print about it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from minigpt.cli.input import read_text
from minigpt.cli.options import OnUnknown
from minigpt.cli.output import notice
from minigpt.errors import UserError

if TYPE_CHECKING:
    from minigpt.interpret.passage import Excerpt
    from minigpt.storage.checkpoint import Checkpoint


TextOption = Annotated[str | None, Option(help="Text to look at.", metavar="S")]


FileOption = Annotated[str | None, Option(help="File with the text to look at; '-' is standard input.", metavar="F")]


ValOption = Annotated[
    int | None, Option(help="Look at the validation split from this token on; the default is 0.", metavar="OFFSET")
]


MaxCharsOption = Annotated[
    int | None, Option(help="Look at N tokens at most (at most 512): the last N of --text or --file.", metavar="N")
]


def chosen_excerpt(
    loaded: "Checkpoint",
    text: str | None,
    file: str | None,
    val: int | None,
    unknown: OnUnknown,
    encoding: str,
    max_chars: int | None,
) -> "Excerpt":
    """Return the text to look at: the one given, or else a part of the validation split, or of the model's own."""
    from minigpt.interpret import passage

    if sum(choice is not None for choice in (text, file, val)) > 1:
        raise UserError("--text, --file and --val exclude each other")
    if max_chars is not None and not 1 <= max_chars <= passage.MOST:
        raise UserError(f"--max-chars {max_chars}: expected 1 to {passage.MOST}")
    if text is not None:
        return passage.given(loaded, loaded.tokenizer.encode(text, unknown), "the text given", max_chars)
    if file is not None:
        content = read_text(file, encoding)
        name = "standard input" if file == "-" else Path(file).name
        return passage.given(loaded, loaded.tokenizer.encode(content, unknown), name, max_chars)
    try:
        tokens = loaded.validation
    except UserError as error:
        if val is not None:
            raise
        notice(f"{error}; looking at a text that the model draws itself")
        return passage.of_the_model(loaded, max_chars)
    return passage.of_validation(loaded, tokens, val or 0, max_chars)


def check_index(option: str, value: int | None, count: int, what: str) -> None:
    """Raise UserError for an index that is out of range."""
    if value is not None and not 0 <= value < count:
        raise UserError(f"{option} {value}: there are {count} {what}, counted from 0")


def notice_checkpoint(loaded: "Checkpoint") -> None:
    """Print which checkpoint is looked into."""
    from minigpt.interpret.record import doubt

    loss = loaded.meta.validation_loss
    measured = "" if loss is None else f", validation loss measured last {loss:.4f}"
    notice(f"{loaded.path}: step {loaded.meta.step}{measured}")
    if problem := doubt(loaded):
        notice(problem)


def notice_left_out(passage: "Excerpt") -> None:
    """Print how much of a long text is looked at."""
    if passage.left_out:
        notice(f"looking at the last {len(passage.ids)} of {len(passage.ids) + passage.left_out:,} tokens")
