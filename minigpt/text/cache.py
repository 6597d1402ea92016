"""The cache folder: files that are complete or absent, and memory maps of them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from minigpt.errors import UserError, escape, reason
from minigpt.files import publish, remove_abandoned


@contextmanager
def cached_file(path: Path) -> Iterator[BinaryIO]:
    """Open a cache file for writing. It appears at `path` at the end of the block. Raises UserError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_abandoned(path.parent)
        with publish(path) as temporary, open(temporary, "xb") as file:
            yield file
    except OSError as error:
        problem = f"cannot write to the cache: {escape(error.filename or path)}: {reason(error)}"
        raise UserError(f"{problem}; set MINIGPT_CACHE to use a different folder") from error
