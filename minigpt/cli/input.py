"""Read the text of a file or a run."""

from typing import TYPE_CHECKING

from minigpt.errors import TextMismatchError

if TYPE_CHECKING:
    from minigpt.storage.checkpoint import Checkpoint
    from minigpt.text.dataset import TokenDataset


def read_text(path: str, encoding: str) -> str:
    """Return the text of a source, such as a file, or "-" for standard input."""
    from minigpt.text.sources import open_corpus

    return "".join(open_corpus([path], encoding).blocks())


def run_dataset(checkpoint: "Checkpoint") -> "TokenDataset":
    """Return the dataset of a run. Raises UserError if its text is missing or has changed."""
    from minigpt.text.dataset import reload_dataset

    metadata = checkpoint.metadata
    try:
        return reload_dataset(checkpoint.config.data, metadata.fingerprint, checkpoint.tokenizer, metadata.characters)
    except TextMismatchError as error:
        error.checkpoint = checkpoint.path  # for the hint
        raise
