"""Save and load checkpoints.

A checkpoint is a folder. `save_checkpoint` writes it under a temporary name, hashes and flushes its files, and renames
it. A checkpoint is therefore complete or absent. Loading a file detects any later change to it.
"""

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray
from safetensors import SafetensorError

from minigpt.config.resolve import changed_on_resume, from_yaml, to_yaml
from minigpt.config.schema import RunConfig
from minigpt.config.shapes import parameter_shapes
from minigpt.errors import (
    CheckpointError,
    InsufficientMemoryError,
    TrainingError,
    UserError,
    escape,
    reason,
)
from minigpt.files import decode, publish, read_within, sync, withdraw, write_atomically
from minigpt.paths import FRAMES, run_of
from minigpt.storage.metadata import (
    LIMITS,
    METADATA,
    MODEL,
    OPTIMIZER,
    Metadata,
    Origin,
    digest,
    is_checkpoint_file,
    read_checked,
    read_metadata,
    verify,
)
from minigpt.storage.runs import checkpoint_steps, find_checkpoint, newest_step, step_folder
from minigpt.text.tokenizer import Tokenizer, from_json

Arrays = dict[str, NDArray[np.float32]]

RETRY_PAUSES = (1.0, 4.0)
"""Seconds to wait before each retry of a failed save."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint in memory, without its optimizer state."""

    config: RunConfig
    tokenizer: Tokenizer
    metadata: Metadata
    weights: Arrays
    """The weights of the model by parameter name."""
    path: Path

    @property
    def run_name(self) -> str:
        """The name of the run, or of the checkpoint's folder if somebody copied it out of the run."""
        return (run_of(self.path) or self.path.absolute()).name

    @property
    def as_origin(self) -> Origin:
        """This checkpoint as an `Origin`, for the metadata of a run that starts from it."""
        sha256 = self.metadata.sha256.get(MODEL, "")
        return Origin(run=escape(self.run_name), step=self.metadata.step, sha256=sha256)


@dataclass(frozen=True)
class Snapshot:
    """The tensors of a run at one step, on the host."""

    weights: Arrays
    """The weights of the model by parameter name."""
    optimizer: Arrays
    """The state of the optimizer. Empty before the first step, and in a frame."""

    @property
    def is_finite(self) -> bool:
        """Whether every number is finite."""
        return all(bool(np.isfinite(array).all()) for array in (*self.weights.values(), *self.optimizer.values()))


# --- save --------------------------------------------------------------------------------------------


def save_checkpoint(
    run: Path,
    config: RunConfig,
    tokenizer: Tokenizer,
    metadata: Metadata,
    snapshot: Snapshot,
    log: Callable[[str], None] = lambda line: None,
) -> Path:
    """Publish a checkpoint, then remove old ones and update the run's config.yaml. Return the new folder.

    Keep the best checkpoint and the newest `train.keep_last`. Retry a failed save from the start.

    Args:
        metadata: The metadata, without hashes.
        log: Receives a line for each failure that does not raise an error.

    Raises:
        TrainingError: Three attempts fail. Older checkpoints are intact.
    """
    folder = step_folder(run, metadata.step)
    for pause in (*RETRY_PAUSES, None):
        try:
            _publish(folder, config, tokenizer, metadata, snapshot)
            break
        except (OSError, SafetensorError) as error:
            problem = f"cannot save the checkpoint at step {metadata.step}: {reason(error)}"
            if pause is None:
                raise TrainingError(problem, run, newest_step(run)) from error
            log(f"{problem}; retrying in {pause:.0f} s")
            time.sleep(pause)
    try:
        _prune(run, keep_last=config.train.keep_last, best=metadata.state.best_checkpoint)
        if changed_settings(run, folder):
            write_atomically(run / "config.yaml", to_yaml(config))
    except OSError as error:  # the next save tries again
        log(f"cannot remove old checkpoints or write config.yaml: {reason(error)}")
    return folder


def save_frame(
    run: Path,
    config: RunConfig,
    tokenizer: Tokenizer,
    metadata: Metadata,
    snapshot: Snapshot,
    log: Callable[[str], None] = lambda line: None,
) -> None:
    """Publish a frame: a checkpoint in 16 bits without optimizer state. Only log a failure: a run needs no frames."""
    frame = Snapshot(in_16_bits(snapshot.weights), {})
    try:
        _publish(step_folder(run, metadata.step, FRAMES), config, tokenizer, metadata, frame)
    except (OSError, SafetensorError) as error:
        log(f"cannot save the frame at step {metadata.step}: {reason(error)}")


def in_16_bits(arrays: Arrays) -> Any:
    """Return finite arrays in float16, clipped to its range."""
    most = np.finfo(np.float16).max
    return {name: array.clip(-most, most).astype(np.float16) for name, array in arrays.items()}


def _publish(folder: Path, config: RunConfig, tokenizer: Tokenizer, metadata: Metadata, snapshot: Snapshot) -> None:
    """Write the folder of a checkpoint or frame under a temporary name, and rename it."""
    if not folder.parent.is_dir():
        folder.parent.mkdir()  # without its parents: somebody may have moved the run
        sync(folder.parent.parent)
    with publish(folder) as building:
        building.mkdir()
        (building / "config.yaml").write_text(to_yaml(config), encoding="utf-8", newline="\n")
        (building / "tokenizer.json").write_text(tokenizer.to_json(), encoding="utf-8")
        for name, arrays in ((MODEL, snapshot.weights), (OPTIMIZER, snapshot.optimizer)):
            path = building / name
            safetensors.numpy.save_file({key: np.asarray(array, order="C") for key, array in arrays.items()}, path)
            shutil.copymode(building / "config.yaml", path)  # safetensors makes files that only their owner can read
        (building / METADATA).write_text(_with_hashes(metadata, building), encoding="utf-8", newline="\n")


def _prune(run: Path, keep_last: int, best: int) -> None:
    """Remove all checkpoints except the best, the newest `keep_last`, and any to which someone has added a file.

    Names with a leading dot do not count: macOS adds `.DS_Store` to folders that someone opens.
    """
    for folder in (step_folder(run, step) for step in checkpoint_steps(run)[:-keep_last] if step != best):
        if all(is_checkpoint_file(name) or name.startswith(".") for name in os.listdir(folder)):
            withdraw(folder)


def changed_settings(run: Path, checkpoint: Path) -> str:
    """Return the problem with the run's config.yaml, or "" if it equals the file in `checkpoint`."""
    try:
        contents = [read_within(folder / "config.yaml", folder, LIMITS["config.yaml"]) for folder in (run, checkpoint)]
    except UserError as error:
        return error.problem
    problem = f"{escape(run / 'config.yaml')} differs from the settings of the checkpoint {checkpoint.name}"
    return problem if contents[0] != contents[1] else ""


def _with_hashes(metadata: Metadata, folder: Path) -> str:
    """Return the content of metadata.json, with the hashes of the files in `folder`."""
    fields, hashes = metadata.model_dump(exclude={"sha256"}), {}
    for path in sorted(folder.iterdir()):
        hashes[path.name] = hashlib.sha256(np.memmap(path, mode="r").data).hexdigest()
    return json.dumps({**fields, "sha256": {**hashes, METADATA: digest(fields)}}, indent=1)


# --- load --------------------------------------------------------------------------------------------


def load_checkpoint(run: str | Path = "last", which: str | int | None = None) -> Checkpoint:
    """Load a checkpoint.

    Args:
        run: "mine", "mine@400", "last", the folder of a run, or the folder of a checkpoint.
        which: "best", "last" or a step. By default, what `run` names, or else the best.

    Raises:
        RunNotFoundError: There is no such run.
        CheckpointError: There is no such checkpoint, or it is damaged.
    """
    while True:
        path = find_checkpoint(str(run), which)
        try:
            return read_checkpoint(path)
        except InsufficientMemoryError:
            raise
        except UserError as error:
            if os.path.lexists(path):  # otherwise training has pruned it after saving a newer one
                raise CheckpointError(error.problem, run_of(path)) from error


def read_checkpoint(path: Path, beside: Checkpoint | None = None) -> Checkpoint:
    """Return the checkpoint or frame in a folder. It must be of the run of `beside`, if `beside` is given.

    Raises:
        UserError: It is missing, damaged or not of this run.
    """
    checkpoint = read_without_weights(path)
    if beside:
        check_same_run(checkpoint, beside)
    weights = _read_arrays(path, MODEL, checkpoint.metadata)
    expected = parameter_shapes(checkpoint.config.model, checkpoint.tokenizer.vocab_size)
    actual = {name: array.shape for name, array in weights.items()}
    for name in sorted(expected | actual):
        if expected.get(name) != actual.get(name):
            has = f"has shape {actual[name]}" if name in actual else "is missing"
            needs = f"expected shape {expected[name]}" if name in expected else "it is not part of the model"
            problem = f"the weights of {escape(path)} do not fit its configuration"
            raise CheckpointError(f"{problem}: {escape(name)[:80]} {has}; {needs}")
    return replace(checkpoint, weights=weights)


def read_without_weights(path: Path) -> Checkpoint:
    """Return the checkpoint or frame in a folder, without its weights. Raises UserError."""
    metadata = read_metadata(path)
    tokenizer = from_json(_read_text(path, "tokenizer.json", metadata), str(path / "tokenizer.json"))
    return Checkpoint(read_settings(path, metadata), tokenizer, metadata, {}, path)


def read_intact(path: Path) -> Checkpoint:
    """Check each file of a checkpoint or frame, and return it without its weights. Raises UserError."""
    verify(path)
    return read_without_weights(path)


def check_same_run(checkpoint: Checkpoint, other: Checkpoint) -> None:
    """Raise CheckpointError if two checkpoints cannot be of one run, as after copying one into another run."""
    differences = changed_on_resume(other.config, checkpoint.config)
    if checkpoint.tokenizer.to_json() != other.tokenizer.to_json():
        differences.append("its vocabulary is different")
    if differences:
        raise CheckpointError(f"{escape(checkpoint.path)} is not of this run: {differences[0]}")


def read_settings(path: Path, metadata: Metadata) -> RunConfig:
    """Return the settings of a checkpoint. Raises UserError if they are missing, changed or invalid."""
    text = _read_text(path, "config.yaml", metadata)
    return from_yaml(text, str(path / "config.yaml"))


def _read_text(path: Path, name: str, metadata: Metadata) -> str:
    return decode(read_checked(path, name, metadata), path / name)


def load_optimizer(checkpoint: Checkpoint) -> Arrays:
    """Return the optimizer state of a checkpoint. Raise UserError if it is missing or damaged."""
    return _read_arrays(checkpoint.path, OPTIMIZER, checkpoint.metadata)


def _read_arrays(path: Path, name: str, metadata: Metadata) -> Arrays:
    """Read arrays after checking their hash. Parse the hashed bytes, because the file may change."""
    try:
        return parse_arrays(read_checked(path, name, metadata), path / name)
    except MemoryError as error:
        raise InsufficientMemoryError(f"{escape(path / name)} does not fit in memory") from error


def parse_arrays(content: bytes, path: Path) -> Arrays:
    """Return the arrays of a safetensors file in float32. `path` is for messages.

    Raises:
        CheckpointError: The file is damaged, or its numbers are not finite, or neither float16 nor float32.
    """
    try:
        arrays = safetensors.numpy.load(content)
    except (SafetensorError, ValueError, KeyError) as error:
        raise CheckpointError(f"{escape(path)} is not a valid safetensors file: {reason(error)}") from error
    for key, array in arrays.items():
        if array.dtype not in (np.float16, np.float32) or not np.isfinite(array).all():
            raise CheckpointError(f"{escape(path)}: {escape(key)[:80]} must contain finite float32 or float16 values")
    return {key: array.astype(np.float32, copy=False) for key, array in arrays.items()}
