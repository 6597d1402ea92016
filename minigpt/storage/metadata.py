"""The metadata of a checkpoint, and the hashes that show whether its files have changed."""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from minigpt.config import yaml
from minigpt.config.schema import MOST_STEPS, MOST_THREADS
from minigpt.errors import CheckpointError, escape
from minigpt.files import open_within, read_within

METADATA, MODEL, OPTIMIZER = "metadata.json", "model.safetensors", "optimizer.safetensors"
TEXTS = ("config.yaml", "tokenizer.json")
FILES = (MODEL, OPTIMIZER, *TEXTS)
"""The files of a checkpoint whose hashes are in its metadata."""
LIMITS = {METADATA: 1 << 20, "config.yaml": yaml.LIMIT, "tokenizer.json": 16 << 20, "environment.jsonl": 16 << 20}
"""The maximum size of each text file, in bytes. A tokenizer with all of Unicode takes 13 MB."""
Count = Annotated[int, Field(ge=0, le=MOST_STEPS)]


@dataclass
class TrainState:
    """Training state saved in each checkpoint, except tensors."""

    __pydantic_config__ = ConfigDict(strict=True, allow_inf_nan=False)

    step: Count = 0
    """Steps completed."""
    tokens_seen: Annotated[int, Field(ge=0, lt=1 << 62)] = 0
    seconds: Annotated[float, Field(ge=0, le=1e12)] = 0.0
    """The training time of the run so far, over all its sessions."""
    train_loss: float | None = None
    """The training loss at the last log line."""
    validation_loss: float | None = None
    """The latest validation loss, which may be several steps old."""
    best_loss: float | None = None
    """The lowest validation loss, measured at `best_step`."""
    best_step: Count = 0
    train_loss_at_best: float | None = None
    evaluations_since_best: Count = 0
    # Sums since the last log line, so that a resumed run logs the same means.
    loss_sum: float = 0.0
    loss_count: Count = 0

    def observe(self, validation_loss: float, is_trained: bool, is_warm: bool) -> bool:
        """Record a validation loss. Return whether it is the best of a trained model so far.

        While `best_step` is 0, patience ignores evaluations during warmup (until `is_warm`).
        """
        is_best = is_trained and (self.best_loss is None or validation_loss < self.best_loss)
        if is_best:
            self.best_loss, self.best_step, self.train_loss_at_best = validation_loss, self.step, self.train_loss
        self.validation_loss = validation_loss
        is_waiting = is_best or (self.best_step == 0 and not is_warm)
        self.evaluations_since_best = 0 if is_waiting else self.evaluations_since_best + 1
        return is_best

    @property
    def best_checkpoint(self) -> int:
        """The step of the checkpoint with the lowest validation loss, or of this checkpoint if none is recorded."""
        return self.step if self.best_loss is None else self.best_step

    @property
    def summary(self) -> dict[str, float | None]:
        """The fields that commands print."""
        names = ("step", "seconds", "train_loss", "validation_loss", "best_loss", "best_step")
        return {name: getattr(self, name) for name in names}


class _Part(BaseModel):
    """Part of the metadata, with strict types and finite numbers. Unknown fields are ignored."""

    model_config = ConfigDict(frozen=True, strict=True, allow_inf_nan=False, protected_namespaces=())


class Environment(_Part):
    """Facts outside the configuration that affect the last bits of a result."""

    device: str
    dtype: Literal["float32", "bfloat16"]
    compile: bool
    threads: int = Field(ge=1, le=MOST_THREADS)
    kernels: Literal["cpu", "torch", "reference"] = "torch"
    sums: str = "exact"
    """How processes add up gradients: "exact", or a sum that depends on the number of processes."""
    processor: str = ""
    torch: str = ""
    numpy: str = ""
    minigpt: str = ""

    def changes(self, before: "Environment") -> list[str]:
        """Return a phrase for each field that differs from `before`. Ignore fields that are empty in `before`."""
        old = dict(before)
        return [f"{key} {new} instead of {old[key]}" for key, new in self if old[key] not in ("", new)]


class Origin(_Part):
    """The checkpoint whose weights a run started from."""

    run: str
    step: Count
    sha256: str
    """The hash of its model.safetensors."""


class Metadata(_Part):
    """The content of metadata.json."""

    format: Literal[1] = 1
    corpus: str
    """The names of the training texts."""
    fingerprint: str
    """The fingerprint of the dataset."""
    characters: Count = 0
    """`characters_read` of the dataset."""
    origin: Origin | None = None
    imported: str = ""
    """The program that a model was imported from, without optimizer state."""
    vocab_size: Annotated[Count, Field(ge=1)]
    parameters: int = Field(ge=1, lt=1 << 62)
    runtime: Environment
    state: TrainState
    sha256: dict[str, str] = Field(default_factory=dict)
    """The hash of each file, and of this file's other fields."""

    @property
    def step(self) -> int:
        """The step of the checkpoint."""
        return self.state.step


def is_checkpoint_file(name: str) -> bool:
    """Return whether training writes a file of this name into a checkpoint."""
    return name in (METADATA, *FILES)


def digest(fields: Mapping[str, Any]) -> str:
    """Return the SHA-256 of the fields of metadata.json, except the hashes."""
    hashed = {key: value for key, value in fields.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(hashed, sort_keys=True).encode()).hexdigest()


def read_metadata(checkpoint: Path) -> Metadata:
    """Return the metadata of a checkpoint folder. Raise UserError if it is unreadable, changed or invalid."""
    content = read_within(checkpoint / METADATA, checkpoint, LIMITS[METADATA])
    try:
        fields = json.loads(content)
        intact = fields["sha256"][METADATA] == digest(fields)
    except (ValueError, KeyError, TypeError, RecursionError):
        intact = False
    if not intact:
        raise _changed(checkpoint, METADATA)
    try:
        return Metadata.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        problem = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise CheckpointError(f"{escape(checkpoint / METADATA)} is not valid: {escape(problem)}") from error


def read_checked(checkpoint: Path, name: str, metadata: Metadata) -> bytes:
    """Return the content of a file of a checkpoint. Raise UserError if it is missing, too large or changed."""
    content = read_within(checkpoint / name, checkpoint, _limit(checkpoint, name, metadata))
    if hashlib.sha256(content).hexdigest() != metadata.sha256.get(name):
        raise _changed(checkpoint, name)
    return content


def verify(checkpoint: Path) -> Metadata:
    """Check each file of a checkpoint and return its metadata. Raises UserError like `read_checked`."""
    metadata = read_metadata(checkpoint)
    for name in FILES:
        hashed = hashlib.sha256()
        with open_within(checkpoint / name, checkpoint, _limit(checkpoint, name, metadata)) as file:
            while block := file.read(1 << 20):
                hashed.update(block)
        if hashed.hexdigest() != metadata.sha256.get(name):
            raise _changed(checkpoint, name)
    return metadata


def _limit(checkpoint: Path, name: str, metadata: Metadata) -> int:
    """Return the maximum size of a file in bytes. Raise CheckpointError if it is the optimizer state, and missing.

    The optimizer keeps at most two float32 numbers per parameter. The rest is for headers.
    """
    if name == OPTIMIZER and not os.path.lexists(checkpoint / name):
        raise CheckpointError(f"cannot resume from {escape(checkpoint)}: optimizer state is missing")
    return LIMITS.get(name, 8 * metadata.parameters + (16 << 20))


def _changed(checkpoint: Path, name: str) -> CheckpointError:
    return CheckpointError(f"checkpoint {escape(checkpoint)} is damaged: {name} has changed since it was saved")
