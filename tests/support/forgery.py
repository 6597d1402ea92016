"""Checkpoints that were given matching hashes, so that only what they say can be judged."""

import hashlib
import json
from pathlib import Path
from typing import Any

from minigpt.storage.metadata import FILES, METADATA, digest

MODEL, OPTIMIZER, CONFIG, TOKENIZER = FILES
TEXT, STEPS = "abacus\ncab\nbaca\n" * 40, (2, 4)
"""What the run is trained on whose checkpoints are forged, and the steps of these."""


def forge(folder: Path, files: dict[str, bytes] | None = None, meta: dict[str, Any] | None = None) -> None:
    """Give a checkpoint this content, with hashes that match."""
    for name, content in (files or {}).items():
        (folder / name).write_bytes(content)
    said = meta or json.loads((folder / METADATA).read_bytes())
    hashes = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in FILES}
    said["sha256"] = {**hashes, METADATA: digest(said)}
    (folder / METADATA).write_text(json.dumps(said), encoding="utf-8")
