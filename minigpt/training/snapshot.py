"""Save the tensors of a learner as a checkpoint, and restore them, also if each process holds only some rows."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from minigpt.config.schema import RunConfig
from minigpt.errors import CheckpointError, reason
from minigpt.model.device import choose_runtime, pick_device
from minigpt.model.size import training_flops
from minigpt.storage.checkpoint import Arrays, Checkpoint, load_optimizer, save_checkpoint, save_frame, write_arrays
from minigpt.storage.metadata import Environment, Metadata
from minigpt.text.dataset import TokenDataset
from minigpt.text.tokenizer import Tokenizer
from minigpt.training.dtensors import is_dtensor, local
from minigpt.training.learner import Learner
from minigpt.training.parallel import ONE, Processes, Write, choose_fsdp
from minigpt.training.schedule import run_steps

RAW = "weights/"
"""Prefix of the raw weights in the state of the optimizer, if the saved weights are their moving average."""


def make_learner(
    config: RunConfig,
    data: TokenDataset,
    checkpoint: Checkpoint | None = None,
    *,
    saved: Environment | None = None,
    start: Checkpoint | None = None,
    processes: Processes = ONE,
) -> Learner:
    """Return the learner of a new run, perhaps with `start`'s weights, or of a run that resumes (collective).

    Raises:
        DeviceError: The device is not available.
        InsufficientMemoryError: The model does not fit.
    """
    steps, vocab_size = run_steps(config, len(data.train)), data.tokenizer.vocab_size
    saved = checkpoint.metadata.runtime if checkpoint else saved
    device = processes.together(lambda: pick_device(config.runtime.device, saved, processes.local_rank))
    needs_fsdp = processes.together(lambda: choose_fsdp(processes.size, config, vocab_size, device))
    is_fsdp = any(processes.gather(needs_fsdp))  # each looked at the memory of its own device
    settings = config.runtime.model_copy(update={"device": device})
    flops = steps * config.tokens_per_step * training_flops(config.model, vocab_size) / processes.size
    chosen = processes.share(choose_runtime(settings, saved, flops=flops))
    runtime = replace(chosen, device=device, compile=chosen.compile and not is_fsdp)
    learner = Learner(config, vocab_size, runtime, start=start, processes=processes, is_fsdp=is_fsdp)
    if checkpoint:
        restore(learner, checkpoint)
    return learner


def save(
    learner: Learner,
    run: Path,
    tokenizer: Tokenizer,
    metadata: Metadata,
    log: Callable[[str], None] = lambda line: None,
    *,
    is_frame: bool = False,
) -> bool:
    """Publish a checkpoint, or a frame, which has no optimizer state (collective).

    Return False, and save nothing, if a weight or state is not finite.

    The main process saves. With FSDP2, each process writes its rows. If saving fails, the main process raises the
    error of `save_checkpoint`, and the other processes raise OtherProcessError.
    """
    processes = learner.processes

    def save_with(write: Write) -> None:
        (save_frame if is_frame else save_checkpoint)(run, learner.config, tokenizer, metadata, write, log)

    def publish() -> bool:
        weights, optimizer = _saved_tensors(learner) if not is_frame else (learner.evaluated_model.state_dict(), {})
        is_finite = all(bool(local(tensor).isfinite().all()) for tensor in (*weights.values(), *optimizer.values()))
        if not all(processes.gather(is_finite) if learner.is_fsdp else [is_finite]):
            return False
        write = partial(write_arrays, weights=_arrays(weights, processes), optimizer=_arrays(optimizer, processes))
        if learner.is_fsdp:
            processes.write_together(save_with, partial(write, part=processes.rank + 1, parts=processes.size))
        else:
            save_with(write)
        return True

    if learner.is_fsdp:
        return publish()
    return processes.share(processes.together(lambda: publish() if processes.is_main else True))


def _saved_tensors(learner: Learner) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the weights and the optimizer state, with the raw weights if the weights are their average."""
    weights, optimizer = learner.model.state_dict(), learner.optimizer.state_dict()
    if learner.average is None:
        return weights, optimizer
    return learner.average.state_dict(), optimizer | {f"{RAW}{name}": tensor for name, tensor in weights.items()}


def _arrays(tensors: Mapping[str, Tensor], processes: Processes) -> Arrays:
    """Return the tensors, or their rows, that this process saves."""
    saved = {name: tensor for name, tensor in tensors.items() if processes.is_main or is_dtensor(tensor)}
    return {name: local(tensor).cpu().numpy() for name, tensor in saved.items()}


def restore(learner: Learner, checkpoint: Checkpoint) -> None:
    """Load the weights and the optimizer state of a checkpoint, which only the main process reads (collective).

    Raises CheckpointError if they do not fit, or the optimizer state is missing.
    """
    processes = learner.processes
    stored = processes.together(lambda: load_optimizer(checkpoint) if processes.is_main else {})
    shapes = processes.share({name: array.shape for name, array in stored.items()})
    state = {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}  # whole on the main process
    state |= {name: torch.tensor(array) for name, array in stored.items()}
    raw = {name.removeprefix(RAW): state.pop(name) for name in shapes if name.startswith(RAW)}
    if not state and checkpoint.metadata.step > 0:
        raise CheckpointError(f"cannot resume from {checkpoint.path}: optimizer state is missing")
    weights = {name: torch.tensor(array) for name, array in checkpoint.weights.items()}
    try:
        processes.distribute(raw or weights, learner.model.state_dict())
        learner.optimizer.load_state_dict(state, processes)
        if learner.average is not None:
            processes.distribute(weights, learner.average.state_dict())
    except (ValueError, KeyError) as error:
        raise CheckpointError(f"cannot resume from {checkpoint.path}: {reason(error)[:200]}") from error
