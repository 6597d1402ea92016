"""The tensors of a checkpoint: taken from a model and its optimizer, and put back, also if they are sharded."""

import torch
from torch import Tensor

from minigpt.errors import CheckpointError, reason
from minigpt.model.load import Model
from minigpt.storage.checkpoint import Arrays, Checkpoint, load_optimizer
from minigpt.training.optim import Optimizer
from minigpt.training.parallel import Processes
from minigpt.training.sharding import is_sharded, local

RAW = "weights/"
"""Prefix of the raw weights in optimizer.safetensors, used when model.safetensors holds their moving average."""


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
