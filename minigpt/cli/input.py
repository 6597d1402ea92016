"""Read what commands use: files, runs, and the text of a run."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from minigpt.cli.output import refuse_trained_on
from minigpt.errors import TextMismatchError

if TYPE_CHECKING:
    from pathlib import Path

    from minigpt.storage.checkpoint import Checkpoint
    from minigpt.text.dataset import TokenDataset


def read_text(path: str, encoding: str = "utf-8") -> str:
    """Return the text of a file, or of standard input if `path` is "-"."""
    from minigpt.text.sources import open_corpus

    return "".join(open_corpus([path], encoding).blocks())


def run_dataset(checkpoint: "Checkpoint") -> "TokenDataset":
    """Return the text of a run. Raises UserError if it is missing or has changed."""
    from minigpt.text.dataset import reload_dataset

    metadata = checkpoint.metadata
    try:
        return reload_dataset(checkpoint.config.data, metadata.fingerprint, checkpoint.tokenizer, metadata.characters)
    except TextMismatchError as error:
        error.checkpoint = checkpoint.path  # for the hint
        raise


def load_run(run: "str | Path", which: str | None, outs: "Sequence[Path | None]") -> "Checkpoint":
    """Load a checkpoint. Raise UserError if `outs`, the files that the command will write, include a text of its run.

    A command with output files loads every checkpoint here, so that none is forgotten.
    """
    from minigpt.storage.checkpoint import load_checkpoint

    loaded = load_checkpoint(run, which)
    refuse_trained_on(loaded.config.data, *outs)
    return loaded


def load_other(run: "str | Path", outs: "Sequence[Path | None]" = ()) -> "Checkpoint":
    """Load the best checkpoint of a run, as `load_run` does."""
    return load_run(run, None, outs)
