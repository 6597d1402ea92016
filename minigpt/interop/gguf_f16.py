"""Export to GGUF with matrices in float16: half the size, and logits that differ by about 0.01."""

from pathlib import Path

from minigpt.interop import gguf
from minigpt.interop.gguf import PACKAGE, PROGRAM, load, usage
from minigpt.storage.checkpoint import Checkpoint

__all__ = ["PACKAGE", "PROGRAM", "load", "usage", "write"]


def write(checkpoint: Checkpoint, folder: Path) -> None:
    """Write `model.gguf` into `folder`. Raises the same errors as `gguf.write`."""
    gguf.write(checkpoint, folder, half=True)
