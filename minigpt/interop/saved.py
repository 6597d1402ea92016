"""Read a file of torch.save without running code from it."""

import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch

from minigpt.errors import UserError, escape
from minigpt.files import open_within

T = TypeVar("T")


def read_saved(path: Path, convert: Callable[[Any], T]) -> T:
    """Return what `convert` makes of the content of a file of torch.save. Raises UserError."""
    real = Path(os.path.realpath(path))  # the user's own link may lead anywhere
    with open_within(real, real.parent) as file:
        try:
            if damaged := zipfile.ZipFile(file).testzip():  # torch does not compare the checksums
                raise ValueError(f"{damaged} is damaged")
            file.seek(0)
            # With weights_only, torch builds tensors and plain values, and runs no code from the file.
            return convert(torch.load(file, map_location="cpu", weights_only=True))  # noqa: TID251
        except (MemoryError, UserError):
            raise
        except Exception as error:  # zipfile and torch raise many types for damaged files
            problem = "is damaged, or not a file of torch.save with nothing but tensors and plain values"
            raise UserError(f"{escape(path)} {problem}; no code from it runs") from error
