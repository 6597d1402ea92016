"""Checkpoints: folders that are whole or absent, that explain themselves, and that hold all a run needs to go on."""

import itertools
import json
import math
import os
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from minigpt.config import resolve as config
from minigpt.config.schema import RunConfig
from minigpt.errors import InsufficientMemoryError, UserError, escape, reason
from minigpt.files import decoded, open_within, sha256, sync_file, sync_folder, write_atomically, write_synced
from minigpt.model.gpt import GPT, count_parameters
from minigpt.model.memory import check_loading
from minigpt.sampling.draft import Draft
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
    verify_file,
)
from minigpt.storage.runs import CHECKPOINTS, QUARANTINED, as_argument, checkpoint_steps, find_checkpoint, step_folder
from minigpt.text import tokenizer
from minigpt.text.dataset import cached_text, load_dataset
from minigpt.text.tokenizer import Ids, Tokenizer

PAUSES = (1.0, 4.0)
"""Seconds to wait before a save that failed is tried again."""
TRAINING_COPIES = 3
"""What optimizer.safetensors has of a tensor: two averages, and where the model's weights are averages the raw one."""
SAVING, OLD = ".saving-", ".old-"
"""How the names begin of folders that are being written, and removed."""
LOOKS = 5
"""How often a checkpoint that is pruned while it is read is looked for anew."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint in memory: the model ready to use, and what it came from."""

    model: GPT
    tokenizer: Tokenizer
    config: RunConfig
    meta: Metadata
    path: Path

    @cached_property
    def validation(self) -> Ids:
        """The tokens (N,) that the model was measured on. UserError where its text is not at hand."""
        return load_dataset(self.config.data, known=(self.meta.corpus.fingerprint, self.tokenizer)).validation

    @cached_property
    def draft(self) -> Draft | None:
        """The n-grams that guess ahead while texts are drawn; None where the text of the run is not in the cache."""
        text = cached_text(self.meta.corpus.fingerprint, self.tokenizer)
        return None if text is None else Draft(text, self.tokenizer.vocab_size)


def load_checkpoint(run: str | Path = "last", which: str | int | None = None) -> Checkpoint:
    """Load a model to sample from, evaluate or look into.

    `run` is a run's folder or name, a checkpoint folder, or "last"; `which` is "best" (the default),
    "last" or a step. Raises UserError when there is none or when a file is not as it was written.
    """
    for look in range(1, LOOKS + 1):
        path = find_checkpoint(str(run), which)
        before = _identity(path)
        try:
            return _load(path)
        except InsufficientMemoryError:
            raise
        except UserError as error:
            pruned = before is None or _identity(path) != before
            if not pruned or look == LOOKS:
                raise UserError(f"{error}{_what_else(path)}") from error
    raise AssertionError("the last look returns or raises")


def _load(path: Path) -> Checkpoint:
    meta = read_metadata(path)
    stored = config.from_yaml(_read_text(path, "config.yaml", meta), str(path / "config.yaml"))
    vocabulary = tokenizer.from_json(_read_text(path, "tokenizer.json", meta), str(path / "tokenizer.json"))
    parameters = count_parameters(stored.model, vocabulary.vocab_size)
    _refuse_other_size(path, parameters)
    check_loading(escape(path), parameters, stored.model)
    model = GPT(stored.model, vocabulary.vocab_size)
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    verify_file(path, "optimizer.safetensors", meta, _most_bytes(shapes, TRAINING_COPIES))
    weights = read_tensors(path, "model.safetensors", meta, _most_bytes(shapes, 1))
    for name in sorted(shapes.keys() | weights.keys()):
        found = tuple(weights[name].shape) if name in weights else "absent"
        if found != shapes.get(name, "absent"):
            expected = f"{escape(name)[:80]} is {found}, its configuration says {shapes.get(name, 'absent')}"
            raise UserError(f"{escape(path)} does not hold the model that it describes: {expected}")
    model.load_state_dict(weights)
    return Checkpoint(model.eval(), vocabulary, stored, meta, path)


def _read_text(path: Path, name: str, meta: Metadata) -> str:
    return decoded(read_checked(path, name, meta, LIMITS[name]), path / name)


def read_tensors(path: Path, name: str, meta: Metadata, limit: int) -> dict[str, Tensor]:
    """Return the tensors in one file of a checkpoint, read from the very bytes that were checked. Raises UserError."""
    content = read_checked(path, name, meta, limit)
    try:
        tensors = safetensors.torch.load(content)
    except (SafetensorError, RuntimeError, ValueError, KeyError) as error:
        raise UserError(f"{escape(path / name)} is not a whole safetensors file: {reason(error)}") from error
    for key, tensor in tensors.items():
        if tensor.dtype != torch.float32 or not tensor.isfinite().all():
            raise UserError(f"{escape(path / name)}: {escape(key)[:80]} does not hold finite float32 numbers")
    return tensors


def read_training_tensors(loaded: Checkpoint) -> dict[str, Tensor]:
    """Return the optimizer's state, and under "weights/NAME" the raw weights where the model's are averages."""
    shapes = {name: tuple(tensor.shape) for name, tensor in loaded.model.state_dict().items()}
    return read_tensors(loaded.path, "optimizer.safetensors", loaded.meta, _most_bytes(shapes, TRAINING_COPIES))


def _refuse_other_size(path: Path, parameters: int) -> None:
    """Raise UserError when the file of weights is smaller than the model described, before memory is taken for it."""
    with open_within(path / "model.safetensors", path) as file:
        size = os.fstat(file.fileno()).st_size
    if size < 4 * parameters:
        raise UserError(
            f"{escape(path)} does not hold the model that it describes: model.safetensors is too small for it"
        )


def _most_bytes(shapes: Mapping[str, tuple[int, ...]], copies: int) -> int:
    """Return how large a file of so many float32 tensors of each of these shapes can be, with their names."""
    return copies * sum(4 * math.prod(shape) + 500 for shape in shapes.values()) + 100_000


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        return path.stat().st_ino, path.stat().st_ctime_ns
    except OSError:
        return None


def _what_else(path: Path) -> str:
    """Say which other checkpoints of the same run are as they were written."""
    if path.parent.name != CHECKPOINTS:
        return ""
    intact = []
    for step in checkpoint_steps(path.parent.parent):
        if (other := step_folder(path.parent.parent, step)) != path:
            with suppress(UserError):  # that one is no help
                verify(other)
                intact.append(str(step))
    return f"; intact: --checkpoint {' or '.join(intact)}" if intact else "; no other checkpoint of the run is intact"


# --- writing -----------------------------------------------------------------------------------------


def save(
    run: Path,
    run_config: RunConfig,
    vocabulary: Tokenizer,
    meta: Metadata,
    model_tensors: Mapping[str, Tensor],
    training: Mapping[str, Tensor],
    say: Callable[[str], None] = lambda line: None,
) -> Path:
    """Publish the checkpoint that `meta` tells of, its hashes still to come, and return its folder.

    It is written beside its place, flushed to disk and renamed; then the pointers `last` and `best`
    move; then older checkpoints but the best and the newest `train.keep_last` go. What fails is tried again.
    Raises UserError when the disk goes on refusing, with what was saved before intact.
    """
    tensors = dict(zip(TENSORS, (model_tensors, training), strict=True))
    text = {"config.yaml": config.to_yaml(run_config), "tokenizer.json": vocabulary.to_json()}
    said = meta.model_dump(exclude={"sha256"})
    what = f"save the checkpoint of step {meta.step}"
    try:
        _insist(lambda: _publish(run, meta.step, tensors, text, said), what, say)
        _insist(lambda: _point(run, meta.state), what, say)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(_building(run, meta.step), ignore_errors=True)
        raise UserError(f"cannot {what}: {reason(error)}; {what_is_kept(run)}") from error
    try:
        _prune(run, meta.state, run_config.train.keep_last)
    except OSError as error:  # the next save tries again
        say(f"cannot remove older checkpoints: {reason(error)}")
    return step_folder(run, meta.step)


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
    run: Path, step: int, tensors: Mapping[str, Mapping[str, Tensor]], text: Mapping[str, str], said: Mapping[str, Any]
) -> None:
    folder, building = step_folder(run, step), _building(run, step)
    folder.parent.mkdir(exist_ok=True)
    sync_folder(run)
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir()
    for name, content in text.items():
        write_synced(building / name, content)
    for name, group in tensors.items():
        whole = {key: tensor.detach().cpu().contiguous() for key, tensor in group.items()}
        safetensors.torch.save_file(whole, building / name)
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
