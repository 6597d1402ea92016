"""Save the state of a run as a checkpoint, and restore it, also if its tensors are sharded over processes."""

from __future__ import annotations

import itertools
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from tqdm import tqdm

from minigpt.errors import CheckpointError, RunMovedError, TrainingError, escape, reason
from minigpt.model.load import Model
from minigpt.storage.checkpoint import Arrays, Checkpoint, load_optimizer, save_checkpoint, write_arrays
from minigpt.storage.metadata import Metadata
from minigpt.storage.runs import create_first
from minigpt.training.optim import Optimizer
from minigpt.training.parallel import Processes
from minigpt.training.sharding import is_sharded, local
from minigpt.training.signals import STDERR

if TYPE_CHECKING:
    from minigpt.training.loop import Training

RAW = "weights/"
"""Prefix of the raw weights in optimizer.safetensors, used when model.safetensors holds their moving average."""


def save(training: Training) -> None:
    """Publish a checkpoint. The main process does it; if the model is sharded, each process writes its rows.

    If that fails, the main process raises the error, and the others OtherProcessError.
    """
    processes = training.processes
    if training.is_sharded:
        _publish(training)
    else:
        processes.together(lambda: _publish(training) if processes.is_main else None)


def _publish(training: Training) -> None:
    state, data, processes = training.state, training.data, training.processes
    training.metrics.flush()
    arrays = take(training.model, training.average, training.optimizer, processes)
    is_finite = all(processes.gather(arrays is not None)) if training.is_sharded else arrays is not None
    if arrays is None or not is_finite:
        raise training.diverged("the weights or the optimizer state are not finite")
    weights, optimizer = arrays
    write = partial(write_arrays, weights=weights, optimizer=optimizer)
    if training.is_sharded:
        write = partial(write, part=processes.rank + 1, parts=processes.size)
        if not processes.is_main:
            processes.serve(write)
            return
    metadata = Metadata(
        corpus=escape(" + ".join(training.config.data.source)),
        fingerprint=data.fingerprint,
        origin=training.origin,
        vocab_size=data.tokenizer.vocab_size,
        parameters=training.parameters,
        runtime=training.environment(),
        state=state,
        metrics_bytes=training.metrics.size,
        metrics_sha256=training.metrics.digest.hexdigest(),
    )
    write_all = processes.write_all(write) if training.is_sharded else write
    log = partial(tqdm.write, file=STDERR)  # the metrics are not open yet at the first save
    run, content = training.run, (training.config, data.tokenizer, metadata, write_all, log)
    has_failed = True
    try:
        save_checkpoint(run, *content, training.in_place)
        has_failed = False
    except RunMovedError as error:
        moved = create_first(run.with_name(f"{run.name}-moved{'-again' * n}") for n in itertools.count())
        training.metrics.copy_to(moved)
        save_checkpoint(moved, *content)
        raise TrainingError(f"{error}; saved step {state.step} in {moved}", moved, state.step) from error
    finally:
        if training.is_sharded:
            processes.share(has_failed)


def take(
    model: Model, average: Model | None, optimizer: Optimizer, processes: Processes
) -> tuple[Arrays, Arrays] | None:
    """Return the weights and the optimizer state that this process saves. None if one is not finite."""
    weights, state = model.state_dict(), optimizer.state_dict()
    if average is not None:
        state |= {f"{RAW}{name}": tensor for name, tensor in weights.items()}
        weights = average.state_dict()

    def arrays(tensors: dict[str, Tensor]) -> Arrays:
        own = {name: tensor for name, tensor in tensors.items() if processes.is_main or is_sharded(tensor)}
        return {name: local(tensor).cpu().numpy() for name, tensor in own.items()}

    is_finite = all(bool(local(tensor).isfinite().all()) for tensor in (*weights.values(), *state.values()))
    return (arrays(weights), arrays(state)) if is_finite else None


def restore(
    checkpoint: Checkpoint, model: Model, average: Model | None, optimizer: Optimizer, processes: Processes
) -> None:
    """Load the weights and the optimizer state of a checkpoint, which only the main process reads (collective).

    Raises:
        CheckpointError: They do not fit, or the optimizer state is missing.
    """
    stored = processes.together(lambda: load_optimizer(checkpoint) if processes.is_main else {})
    shapes = processes.share({name: array.shape for name, array in stored.items()})
    state = {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
    state |= {name: torch.tensor(array) for name, array in stored.items()}
    saved = {name: torch.tensor(array) for name, array in checkpoint.weights.items()}
    raw = {name.removeprefix(RAW): state.pop(name) for name in list(state) if name.startswith(RAW)}
    if not state and checkpoint.metadata.state.step > checkpoint.metadata.state.skipped:  # after an update
        raise CheckpointError(f"cannot resume from {checkpoint.path}: optimizer state is missing")
    try:
        processes.install(model.state_dict(), raw or saved)
        optimizer.load_state_dict(state, processes)
    except (ValueError, KeyError) as error:
        raise CheckpointError(f"cannot resume from {checkpoint.path}: {reason(error)[:200]}") from error
    if average is not None:
        processes.install(average.state_dict(), saved)
