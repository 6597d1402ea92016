"""Options that choose an excerpt."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from minigpt.cli.input import read_text, run_dataset
from minigpt.cli.options import OnUnknown
from minigpt.cli.output import notice
from minigpt.errors import UserError

if TYPE_CHECKING:
    from minigpt.interpret.excerpt import Excerpt
    from minigpt.storage.checkpoint import Checkpoint


TextOption = Annotated[str | None, Option(help="Letters to inspect.", metavar="LETTERS")]
FileOption = Annotated[str | None, Option(help="A text to inspect; '-': standard input.", metavar="SOURCE")]
ValOption = Annotated[
    int | None, Option(help="Inspect the validation split, starting at this token.", metavar="OFFSET")
]


def choose_excerpt(
    checkpoint: "Checkpoint",
    text: str | None,
    file: str | None,
    val: int | None,
    unknown: OnUnknown,
    encoding: str,
    whole_lines: bool = False,
) -> "Excerpt":
    """Return the excerpt that the options choose. By default, use the validation split, or else generated text.

    If `whole_lines`, the default is short, and starts and ends between lines if it can.
    """
    from minigpt.interpret import excerpt
    from minigpt.text.tokenizer import unix_newlines

    if sum(choice is not None for choice in (text, file, val)) > 1:
        raise UserError("--text, --file and --val are mutually exclusive")
    source = "from --text"
    if file is not None:
        text, source = read_text(file, encoding), "standard input" if file == "-" else Path(file).name
    if text is not None:
        ids = checkpoint.tokenizer.encode(unix_newlines(text), unknown)
        chosen = excerpt.last_tokens(checkpoint, ids, source)
        if chosen.skipped:
            notice(f"using the last {len(chosen.ids)} of {len(chosen.ids) + chosen.skipped:,} tokens")
        return chosen
    try:
        tokens = run_dataset(checkpoint).validation
    except UserError as error:
        if val is not None:
            raise
        notice(f"{error}; using generated text instead")
        return excerpt.generated_excerpt(checkpoint)
    if whole_lines and val is None:
        return excerpt.opening_excerpt(checkpoint, tokens)
    return excerpt.validation_excerpt(checkpoint, tokens, val or 0)
