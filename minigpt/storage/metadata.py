"""What a checkpoint says of itself in meta.json, and whether its files are as they were written."""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from minigpt.config import yaml as plain_yaml
from minigpt.config.schema import MOST_THREADS
from minigpt.errors import UserError, escape, reason
from minigpt.files import open_within, read_within, sha256

META = "meta.json"
FORMAT = 1
LIMITS = {META: 1 << 20, "config.yaml": plain_yaml.LIMIT, "tokenizer.json": 16 << 20}
"""Bytes that the files of text can have at most. All of Unicode is a tokenizer of 13 MB."""
TENSORS = ("model.safetensors", "optimizer.safetensors")
FILES = (*TENSORS, "config.yaml", "tokenizer.json")
Count = Annotated[int, Field(ge=0, lt=1 << 63)]


@dataclass
class TrainState:
    """What changes in the course of a run and outlasts it, besides tensors."""

    __pydantic_config__ = ConfigDict(strict=True, allow_inf_nan=False)  # for reading it back from meta.json

    step: Count = 0
    """Updates completed, or skipped."""
    tokens_seen: Count = 0
    seconds: float = 0.0
    """Time spent in the loop, over all its resumptions."""
    train_loss: float | None = None
    """The training loss logged last."""
    validation_loss: float | None = None
    """The validation loss measured last."""
    best_loss: float | None = None
    """The lowest validation loss so far, first measured at `best_step`."""
    best_step: Count = 0
    train_loss_at_best: float | None = None
    evaluations_since_best: Count = 0
    skipped: Count = 0
    """Steps without an update, because its loss or gradient was not finite."""
    # Sums since the last log line, so that a resumed run logs the same means.
    loss_sum: float = 0.0
    loss_count: Count = 0
    clipped_count: Count = 0
    spiked: bool = False
    """Whether a jump of the loss was noted since then."""
    rescheduled: bool = False
    """Whether it was resumed with another length, so that its learning rates are not those of any one run."""

    @property
    def overfitting(self) -> bool:
        """Return whether validation has got worse since the best step while training went on getting better."""
        losses = (self.train_loss, self.validation_loss, self.train_loss_at_best, self.best_loss)
        if self.evaluations_since_best < 2 or None in losses:
            return False
        train, validation, train_at_best, best = (float(loss or 0) for loss in losses)
        return validation > best and train < train_at_best


class _Facts(BaseModel):
    """A part of meta.json: typed without guessing, every number finite; what later versions add is passed over."""

    model_config = ConfigDict(frozen=True, strict=True, allow_inf_nan=False, protected_namespaces=())


class CorpusInfo(_Facts):
    """The text that a model was trained on."""

    name: str
    fingerprint: str


class Environment(_Facts):
    """What a checkpoint was computed with. A run is the same bit for bit only where all of it is."""

    device: str
    dtype: Literal["float32", "bfloat16"]
    compile: bool
    threads: int = Field(ge=1, le=MOST_THREADS)
    kernels: Literal["cpu", "torch"] = "torch"
    processor: str = ""
    torch: str = ""
    numpy: str = ""
    minigpt: str = ""

    def changes(self, before: "Environment") -> list[str]:
        """Return, a phrase each, what is not as it was `before`; what was not noted then is passed over."""
        then = dict(before)
        return [f"{key} {now} instead of {then[key]}" for key, now in self if then[key] not in ("", now)]


class Metadata(_Facts):
    """The content of meta.json."""

    format: int
    step: Count
    characters_seen: Count
    validation_loss: float | None
    """The one measured last, maybe some steps before."""
    corpus: CorpusInfo
    vocab_size: Annotated[Count, Field(ge=1)]
    parameters: Annotated[Count, Field(ge=1)]
    runtime: Environment
    state: TrainState
    sha256: dict[str, str] = Field(default_factory=dict)
    """Of each file, and of the rest of meta.json."""


def read_metadata(checkpoint: Path) -> Metadata:
    """Return the meta.json of a checkpoint folder. Raises UserError when it is not as it was written."""
    content = read_within(checkpoint / META, checkpoint, LIMITS[META])
    try:
        said = json.loads(content)
        intact = said["sha256"][META] == digest(said)
        form = said["format"]
    except (ValueError, KeyError, TypeError, RecursionError):
        intact, form = False, FORMAT
    if not intact:
        raise UserError(f"checkpoint {escape(checkpoint)} is damaged: {META} changed since it was written")
    if form != FORMAT:
        raise UserError(f"{escape(checkpoint)} has format {escape(form)[:20]}, this version of minigpt reads {FORMAT}")
    try:
        meta = Metadata.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise UserError(f"{escape(checkpoint / META)} is not valid: {escape(where)}: {escape(first['msg'])}") from error
    misnamed = checkpoint.name.removeprefix("step-").isdecimal() and checkpoint.name != f"step-{meta.step:08d}"
    if misnamed or meta.step != meta.state.step:
        raise UserError(f"checkpoint {escape(checkpoint)} is damaged: it holds step {meta.state.step}")
    return meta


def digest(facts: Mapping[str, Any]) -> str:
    """Return the sha256 of what a meta.json says, the hashes it holds left out."""
    said = {key: value for key, value in facts.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def read_checked(checkpoint: Path, name: str, meta: Metadata, limit: int) -> bytes:
    """Return the content of one file of a checkpoint, hashed as it was read.

    Raises UserError when it is missing, larger than `limit` bytes, or not as it was written.
    """
    _refuse_missing(checkpoint, name)
    content = read_within(checkpoint / name, checkpoint, limit)
    _compare(checkpoint, name, meta, hashlib.sha256(content).hexdigest())
    return content


def verify(checkpoint: Path) -> Metadata:
    """Check each file of a checkpoint against its sha256 and return its meta.json. Raises UserError."""
    meta = read_metadata(checkpoint)
    for name in FILES:
        verify_file(checkpoint, name, meta)
    return meta


def verify_file(checkpoint: Path, name: str, meta: Metadata, limit: int | None = None) -> None:
    """Check one file of a checkpoint against its sha256, without holding it whole. Raises UserError."""
    _refuse_missing(checkpoint, name)
    with open_within(checkpoint / name, checkpoint) as file:
        if limit is not None and os.fstat(file.fileno()).st_size > limit:
            raise UserError(f"{escape(checkpoint / name)} is larger than the {limit:,} bytes that it can have")
        try:
            found = sha256(file)
        except OSError as error:
            raise UserError(f"{escape(checkpoint / name)} cannot be read: {reason(error)}") from error
    _compare(checkpoint, name, meta, found)


def _refuse_missing(checkpoint: Path, name: str) -> None:
    if not os.path.lexists(checkpoint / name):
        raise UserError(f"checkpoint {escape(checkpoint)} is incomplete: {name} is missing")


def _compare(checkpoint: Path, name: str, meta: Metadata, found: str) -> None:
    if found != meta.sha256.get(name):
        raise UserError(f"checkpoint {escape(checkpoint)} is damaged: {name} changed since it was written")
