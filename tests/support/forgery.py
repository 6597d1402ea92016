"""Forge checkpoints: change their content and give them matching hashes, so that only the content can be judged."""

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load, save

from minigpt.storage.metadata import FILES, METADATA, digest

MODEL, OPTIMIZER, CONFIG, TOKENIZER = FILES
TEXT, STEPS = "abacus\ncab\nbaca\n" * 40, (2, 4)
"""The text of the run whose checkpoints are forged, and their steps."""


def forge(folder: Path, files: dict[str, bytes] | None = None, metadata: dict[str, Any] | None = None) -> None:
    """Give a checkpoint this content, and hashes that match it."""
    for name, content in (files or {}).items():
        (folder / name).write_bytes(content)
    fields = metadata or json.loads((folder / METADATA).read_bytes())
    hashes = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in FILES}
    fields["sha256"] = {**hashes, METADATA: digest(fields)}
    (folder / METADATA).write_text(json.dumps(fields), encoding="utf-8")


def scale_weights(run: Path, factor: float) -> None:
    """Multiply the weights of all checkpoints of a run. The results stay finite."""
    for folder in (run / "checkpoints").glob("step-*"):
        weights = {name: array * np.float32(factor) for name, array in load((folder / MODEL).read_bytes()).items()}
        forge(folder, {MODEL: save(weights)})


def safetensors(header: Any, data: bytes = b"") -> bytes:
    """Return a safetensors file with this header, as bytes or as a value for JSON."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(dtype: str = "F32", shape: Any = (1,), offsets: Any = (0, 4)) -> dict[str, Any]:
    """Return the header of one tensor."""
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}
