"""Save the tensors of a learner as a checkpoint, and restore them, also if each process holds only some rows."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from minigpt.errors import CheckpointError, reason
from minigpt.storage.checkpoint import Checkpoint, load_optimizer, save_checkpoint, write_arrays
from minigpt.storage.metadata import Metadata
from minigpt.text.tokenizer import Tokenizer
from minigpt.training.learner import RAW, Learner


def save(
    learner: Learner,
    run: Path,
    tokenizer: Tokenizer,
    metadata: Metadata,
    log: Callable[[str], None] = lambda line: None,
) -> bool:
    """Publish a checkpoint (collective). Return False, and save nothing, if a weight or state is not finite.

    The main process does it. With FSDP2, each process writes its rows. If that fails, the main process raises the
    error of `save_checkpoint`, and the others OtherProcessError.
    """
    processes = learner.processes

    def publish() -> bool:
        arrays = learner.take()
        is_finite = all(processes.gather(arrays is not None)) if learner.is_fsdp else arrays is not None
        if arrays is None or not is_finite:
            return False
        write = partial(write_arrays, weights=arrays[0], optimizer=arrays[1])
        if not learner.is_fsdp:
            save_checkpoint(run, learner.config, tokenizer, metadata, write, log)
            return True
        write = partial(write, part=processes.rank + 1, parts=processes.size)
        with processes.writing(write) as write_all:
            if write_all:
                save_checkpoint(run, learner.config, tokenizer, metadata, write_all, log)
        return True

    if learner.is_fsdp:
        return publish()
    return processes.share(processes.together(lambda: publish() if processes.is_main else True))


def restore(learner: Learner, checkpoint: Checkpoint) -> None:
    """Load the weights and the optimizer state of a checkpoint, which only the main process reads (collective).

    Raises:
        CheckpointError: They do not fit, or the optimizer state is missing.
    """
    processes = learner.processes
    stored = processes.together(lambda: load_optimizer(checkpoint) if processes.is_main else {})
    shapes = processes.share({name: array.shape for name, array in stored.items()})
    has_moments = any(not name.startswith(RAW) for name in shapes)
    if not has_moments and checkpoint.metadata.state.step > checkpoint.metadata.state.skipped:  # after an update
        raise CheckpointError(f"cannot resume from {checkpoint.path}: optimizer state is missing")
    state = {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
    state |= {name: torch.tensor(array) for name, array in stored.items()}
    weights = {name: torch.tensor(array) for name, array in checkpoint.weights.items()}
    try:
        learner.give(weights, state)
    except (ValueError, KeyError) as error:
        raise CheckpointError(f"cannot resume from {checkpoint.path}: {reason(error)[:200]}") from error
