"""Checkpoints: folders that are whole or absent, that explain themselves, and that hold all a run needs to go on."""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from minigpt import __version__, config, tokenizer
from minigpt.config import RunConfig
from minigpt.errors import UserError, reason
from minigpt.model import GPT
from minigpt.runs import (
    CHECKPOINTS,
    META,
    checkpoint_steps,
    find_checkpoint,
    meta_digest,
    read_meta,
    step_folder,
    write_atomically,
)
from minigpt.tokenizer import Tokenizer

FORMAT = 1
FILES = ("model.safetensors", "optimizer.safetensors", "config.yaml", "tokenizer.json")
OTHERWISE = "choose another checkpoint, or delete this folder to go on from an earlier one"


@dataclass
class TrainState:
    """What changes in the course of a run besides tensors: the only mutable object of the loop."""

    step: int = 0
    """Updates completed."""
    tokens_seen: int = 0
    seconds: float = 0.0
    """Time spent in the loop, over all its resumptions."""
    train_loss: float | None = None
    """The training loss logged last."""
    validation_loss: float | None = None
    """The validation loss measured last."""
    best_loss: float | None = None
    """The lowest validation loss so far, first measured at `best_step`."""
    best_step: int = 0
    train_loss_at_best: float | None = None
    evaluations_since_best: int = 0
    # Sums since the last log line, so that a resumed run logs the same means.
    loss_sum: float = 0.0
    loss_count: int = 0
    clipped_count: int = 0

    @property
    def overfitting(self) -> bool:
        """Return whether validation has got worse since the best step while training went on getting better."""
        losses = (self.train_loss, self.validation_loss, self.train_loss_at_best, self.best_loss)
        if self.evaluations_since_best < 2 or None in losses:
            return False
        train, validation, train_at_best, best = (float(loss or 0) for loss in losses)
        return validation > best and train < train_at_best


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint in memory: the model ready to use, and what it came from."""

    model: GPT
    tokenizer: Tokenizer
    config: RunConfig
    meta: dict[str, Any]
    path: Path

    @property
    def state(self) -> TrainState:
        """Return the loop's state at this checkpoint."""
        return TrainState(**self.meta["state"])


def load_checkpoint(run: str | Path = "last", which: str | None = None, device: str = "cpu") -> Checkpoint:
    """Load a model to sample from, evaluate or look into.

    `run` is a run's folder or name, a checkpoint folder, or "last"; `which` is "best" (the default),
    "last" or a step. Raises UserError when there is none or when a file is not as it was written.
    """
    path = find_checkpoint(str(run), which)
    meta = verify(path)
    stored = config.from_yaml(_read_text(path / "config.yaml"), str(path / "config.yaml"))
    vocabulary = tokenizer.from_json(_read_text(path / "tokenizer.json"), str(path / "tokenizer.json"))
    model = GPT(stored.model, vocabulary.vocab_size)
    try:
        model.load_state_dict(_read_tensors(path / "model.safetensors"))
    except RuntimeError as error:
        why = " ".join(str(error).split())[:200]
        raise UserError(f"{path} does not hold the weights its configuration describes: {why}") from error
    return Checkpoint(model.to(device).eval(), vocabulary, stored, meta, path)


def training_tensors(path: Path) -> dict[str, Tensor]:
    """Return the optimizer's state, and under "weights/NAME" the raw weights where the model's are averages."""
    return _read_tensors(path / "optimizer.safetensors")


def verify(path: Path) -> dict[str, Any]:
    """Check each file of a checkpoint against its sha256 and return its meta.json. Raises UserError."""
    meta = read_meta(path)
    if meta.get("format") != FORMAT:
        raise UserError(f"{path} has format {meta.get('format')!r}, this version of minigpt reads format {FORMAT}")
    for name in FILES:
        if not (path / name).is_file():
            raise UserError(f"checkpoint {path} is incomplete: {name} is missing; {OTHERWISE}")
        if _sha256(path / name) != meta["sha256"].get(name):
            raise UserError(f"checkpoint {path} is damaged: {name} changed since it was written; {OTHERWISE}")
    return meta


def save(
    run: Path,
    run_config: RunConfig,
    vocabulary: Tokenizer,
    state: TrainState,
    model_tensors: Mapping[str, Tensor],
    training: Mapping[str, Tensor],
    facts: Mapping[str, Any],
) -> Path:
    """Publish the checkpoint of `state.step` and return its folder.

    It is written beside its place, flushed to disk and renamed; then the pointers `last` and `best`
    move; then older checkpoints but the best and the newest `train.keep_last` go. Raises UserError when
    the disk refuses, with what was saved before intact.
    """
    folder = step_folder(run, state.step)
    building = folder.with_name(f".saving-{folder.name}")
    try:
        shutil.rmtree(building, ignore_errors=True)
        building.mkdir(parents=True)
        _write_tensors(building / "model.safetensors", model_tensors)
        _write_tensors(building / "optimizer.safetensors", training)
        _write_text(building / "config.yaml", config.to_yaml(run_config))
        _write_text(building / "tokenizer.json", vocabulary.to_json())
        meta = {"format": FORMAT, "minigpt": __version__, "step": state.step, **facts, "state": asdict(state)}
        hashes = {**{name: _sha256(building / name) for name in FILES}, META: meta_digest(meta)}
        _write_text(building / META, json.dumps({**meta, "sha256": hashes}, indent=1))
        _sync_folder(building)
        if folder.exists():  # the run went on from an earlier one; moved away first, for rename needs the place
            _withdraw(folder)
        building.rename(folder)
        _sync_folder(folder.parent)
        _point(run, state)
        for step in checkpoint_steps(run)[: -run_config.train.keep_last]:
            if step not in (state.best_step, state.step):
                _withdraw(step_folder(run, step))
        _remove_leftovers(run)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(building, ignore_errors=True)
        raise UserError(
            f"cannot save the checkpoint of step {state.step}: {reason(error)}; earlier checkpoints are intact"
        ) from error
    return folder


def repair(run: Path, state: TrainState) -> None:
    """Finish what a save that was killed left undone: folders half written or removed, pointers not moved."""
    _remove_leftovers(run)
    if state.step in checkpoint_steps(run):
        _point(run, state)


def _point(run: Path, state: TrainState) -> None:
    """Move the pointers: `last` to this step, `best` to the best one."""
    best = state.best_step if state.best_step in checkpoint_steps(run) else state.step
    for name, step in (("last", state.step), ("best", best)):
        write_atomically(run / CHECKPOINTS / name, f"{step_folder(run, step).name}\n")


def _withdraw(folder: Path) -> None:
    """Take a checkpoint out of sight at once, so that none is ever seen half removed."""
    folder.rename(folder.with_name(f".old-{folder.name}"))


def _remove_leftovers(run: Path) -> None:
    for path in (run / CHECKPOINTS).glob(".*"):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, path)
    with open(path, "rb+") as file:
        os.fsync(file.fileno())


def _read_tensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} is not a whole safetensors file: {reason(error)}") from error


def _write_text(path: Path, text: str) -> None:
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {path}: {reason(error)}") from error


def _sync_folder(folder: Path) -> None:
    """Make renames within `folder` survive a power cut, where the system lets a folder be flushed."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
