"""Save and load checkpoints: folders that are published whole, and hashed."""

import itertools
import json
import os
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray
from safetensors import SafetensorError

from minigpt.config import resolve as config
from minigpt.config.schema import RunConfig
from minigpt.errors import CheckpointError, InsufficientMemoryError, UserError, escape, reason
from minigpt.files import decoded, sha256, sync_file, sync_folder, write_atomically, write_synced
from minigpt.storage.metadata import (
    FILES,
    LIMITS,
    META,
    TENSORS,
    Metadata,
    TrainState,
    digest,
    read_checked,
    read_metadata,
    verify,
)
from minigpt.storage.runs import CHECKPOINTS, QUARANTINED, as_argument, checkpoint_steps, find_checkpoint, step_folder
from minigpt.text import tokenizer
from minigpt.text.tokenizer import Tokenizer

Arrays = dict[str, NDArray[np.float32]]

PAUSES = (1.0, 4.0)
"""Seconds to wait before a save that failed is tried again."""
TRAINING_COPIES = 3
"""Arrays per parameter in optimizer.safetensors: two moving averages and, with `train.ema`, the raw weight."""
HEADER_LIMIT = 1 << 20
"""Bytes that the names in a safetensors file can have at most."""
SAVING, OLD = ".saving-", ".old-"
"""How the names begin of folders that are being written, and removed."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint in memory. `load_model` in minigpt.model.load makes a torch model of it."""

    config: RunConfig
    tokenizer: Tokenizer
    metadata: Metadata
    weights: Arrays
    """The weights of the model, by the names of its parameters."""
    path: Path


def load_checkpoint(run: str | Path = "last", which: str | int | None = None) -> Checkpoint:
    """Load a checkpoint.

    Args:
        run: The name or folder of a run, the folder of a checkpoint, or "last" for the newest run.
        which: "best" (the default), "last", or a step.

    Raises:
        RunNotFoundError: There is no such run.
        CheckpointError: There is no such checkpoint, or a file of it is damaged.
    """
    while True:
        path = find_checkpoint(str(run), which)
        try:
            return _load(path)
        except InsufficientMemoryError:
            raise
        except UserError as error:
            if path.is_dir():  # else the run's training has just pruned it, and a newer one exists
                raise CheckpointError(error.problem, _other_intact(path)) from error


def _load(path: Path) -> Checkpoint:
    metadata = read_metadata(path)
    run_config = config.from_yaml(_read_text(path, "config.yaml", metadata), str(path / "config.yaml"))
    vocabulary = tokenizer.from_json(_read_text(path, "tokenizer.json", metadata), str(path / "tokenizer.json"))
    return Checkpoint(run_config, vocabulary, metadata, _read_arrays(path, "model.safetensors", metadata, 1), path)


def load_optimizer(checkpoint: Checkpoint) -> Arrays:
    """Return the optimizer's state, and the raw weights as "weights/NAME" if the model's weights are averages.

    Raises:
        CheckpointError: The file is missing or damaged.
    """
    name = "optimizer.safetensors"
    if not (checkpoint.path / name).exists():
        raise CheckpointError(f"cannot resume from {escape(checkpoint.path)}: optimizer state is missing")
    return _read_arrays(checkpoint.path, name, checkpoint.metadata, TRAINING_COPIES)


def _read_text(path: Path, name: str, metadata: Metadata) -> str:
    return decoded(read_checked(path, name, metadata, LIMITS[name]), path / name)


def _read_arrays(path: Path, name: str, metadata: Metadata, copies: int) -> Arrays:
    """Parse the bytes that were hashed, so that nothing can change in between."""
    try:
        content = read_checked(path, name, metadata, 4 * copies * metadata.parameters + HEADER_LIMIT)
        arrays = safetensors.numpy.load(content)
    except MemoryError as error:
        raise InsufficientMemoryError(f"{escape(path / name)} does not fit into memory") from error
    except (SafetensorError, ValueError, KeyError) as error:
        raise CheckpointError(f"{escape(path / name)} is not a valid safetensors file: {reason(error)}") from error
    for key, array in arrays.items():
        if array.dtype != np.float32 or not np.isfinite(array).all():
            raise CheckpointError(f"{escape(path / name)}: {escape(key)[:80]} does not hold finite float32 numbers")
    return arrays


def _other_intact(path: Path) -> tuple[int, ...]:
    """Return the steps of the other checkpoints of the same run that are intact."""
    if path.parent.name != CHECKPOINTS:
        return ()
    intact = []
    for step in checkpoint_steps(path.parent.parent):
        if (other := step_folder(path.parent.parent, step)) != path:
            with suppress(UserError):
                verify(other)
                intact.append(step)
    return tuple(intact)


# --- writing -----------------------------------------------------------------------------------------


def save_checkpoint(
    run: Path,
    run_config: RunConfig,
    vocabulary: Tokenizer,
    metadata: Metadata,
    weights: Mapping[str, NDArray[np.float32]],
    optimizer: Mapping[str, NDArray[np.float32]],
    say: Callable[[str], None] = lambda line: None,
) -> Path:
    """Publish the checkpoint that `metadata` tells of, its hashes still to come, and return its folder.

    It is written beside its place, flushed to disk and renamed; then the pointers `last` and `best`
    move; then older checkpoints but the best and the newest `train.keep_last` go. What fails is tried again.
    Raises UserError when the disk goes on refusing, with what was saved before intact.
    """
    tensors = dict(zip(TENSORS, (weights, optimizer), strict=True))
    text = {"config.yaml": config.to_yaml(run_config), "tokenizer.json": vocabulary.to_json()}
    said = metadata.model_dump(exclude={"sha256"})
    what = f"save the checkpoint of step {metadata.step}"
    try:
        _insist(lambda: _publish(run, metadata.step, tensors, text, said), what, say)
        _insist(lambda: _point(run, metadata.state), what, say)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(_building(run, metadata.step), ignore_errors=True)
        raise UserError(f"cannot {what}: {reason(error)}; {what_is_kept(run)}") from error
    try:
        _prune(run, metadata.state, run_config.train.keep_last)
    except OSError as error:  # the next save tries again
        say(f"cannot remove older checkpoints: {reason(error)}")
    return step_folder(run, metadata.step)


def what_is_kept(run: Path) -> str:
    """Say which checkpoint a run that ends now can go on from, and how."""
    if not (steps := checkpoint_steps(run)):
        return "no checkpoint was saved yet"
    return f"the checkpoint of step {steps[-1]} is intact, go on from it: minigpt train --resume {as_argument(run)}"


def _insist(act: Callable[[], None], what: str, say: Callable[[str], None]) -> None:
    """Do `act`, again and from its start if it fails: what was written before a failed flush may be lost silently."""
    for pause in PAUSES:
        try:
            return act()
        except (OSError, SafetensorError) as error:
            say(f"cannot {what}: {reason(error)}; trying again in {pause:.0f} s")
            time.sleep(pause)
    return act()


def _publish(
    run: Path,
    step: int,
    tensors: Mapping[str, Mapping[str, NDArray[np.float32]]],
    text: Mapping[str, str],
    said: Mapping[str, Any],
) -> None:
    folder, building = step_folder(run, step), _building(run, step)
    folder.parent.mkdir(exist_ok=True)
    sync_folder(run)
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir()
    for name, content in text.items():
        write_synced(building / name, content)
    for name, group in tensors.items():
        whole = {key: np.asarray(array, order="C") for key, array in group.items()}  # keeps zero dimensions
        safetensors.numpy.save_file(whole, building / name)
        shutil.copymode(building / "config.yaml", building / name)  # safetensors hides it from other users
        sync_file(building / name)
    hashes = {META: digest(said)}
    for name in FILES:
        with open(building / name, "rb") as file:
            hashes[name] = sha256(file)
    write_synced(building / META, json.dumps({**said, "sha256": hashes}, indent=1))
    sync_folder(building)
    if folder.exists():  # a save that failed is tried again; moved away first, for rename needs the place
        _withdraw(folder)
    os.rename(building, folder)
    sync_folder(folder.parent)


def repair(run: Path, state: TrainState) -> list[str]:
    """Finish what a save that was killed left undone; return the names of what it set aside.

    Folders half written or removed go, the pointers move, and checkpoints of later steps, which the run
    could not go on from, are set aside under other names.
    """
    _remove_leftovers(run)
    for name in ("config.yaml", "environment.json"):
        for path in run.glob(f".{name}.*"):
            path.unlink()
    aside = [_quarantine(step_folder(run, step)).name for step in checkpoint_steps(run) if step > state.step]
    if state.step in checkpoint_steps(run):
        _point(run, state)
    return aside


def _building(run: Path, step: int) -> Path:
    return step_folder(run, step).with_name(SAVING + step_folder(run, step).name)


def _point(run: Path, state: TrainState) -> None:
    """Move the pointers: `last` to this step, `best` to the best one."""
    best = _best_step(state)
    if best not in checkpoint_steps(run):
        best = state.step
    for name, step in (("last", state.step), ("best", best)):
        write_atomically(run / CHECKPOINTS / name, f"{step_folder(run, step).name}\n")


def _best_step(state: TrainState) -> int:
    """Return the step of the lowest validation loss; before any was measured, that of the state."""
    return state.step if state.best_loss is None else state.best_step


def _prune(run: Path, state: TrainState, keep_last: int) -> None:
    for step in checkpoint_steps(run)[:-keep_last]:
        if step not in (_best_step(state), state.step):
            _withdraw(step_folder(run, step))
    _remove_leftovers(run)


def _withdraw(folder: Path) -> None:
    """Take a checkpoint out of sight at once, so that none is ever seen half removed."""
    place = folder.with_name(OLD + folder.name)
    shutil.rmtree(place, ignore_errors=True)
    os.rename(folder, place)


def _quarantine(folder: Path) -> Path:
    """Keep a checkpoint under a name that is no part of the run, beside others of its step, and return its place."""
    ends = itertools.chain([""], (f"-{number}" for number in itertools.count(2)))
    places = (folder.with_name(f"{QUARANTINED}{folder.name}{end}") for end in ends)
    return folder.rename(next(place for place in places if not os.path.lexists(place)))


def _remove_leftovers(run: Path) -> None:
    leftovers = list((run / CHECKPOINTS).glob(".*"))
    if leftovers:
        sync_folder(run / CHECKPOINTS)  # or a power cut could bring back the name of a folder whose files are gone
    for path in leftovers:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
