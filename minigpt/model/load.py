"""Build the torch model of a checkpoint."""

import torch

from minigpt.errors import CheckpointError, escape
from minigpt.model.gpt import GPT
from minigpt.model.size import count_parameters
from minigpt.storage.checkpoint import Checkpoint


def load_model(checkpoint: Checkpoint) -> GPT:
    """Return the model of a checkpoint, on the CPU and in eval mode.

    Raises:
        CheckpointError: The weights do not fit the configuration.
    """
    config, vocab_size = checkpoint.config.model, checkpoint.tokenizer.vocab_size
    misfit = f"the weights of {escape(checkpoint.path)} do not fit its configuration"
    needed = count_parameters(config, vocab_size)
    stored = sum(array.size for array in checkpoint.weights.values())
    if stored != needed:  # before the model takes memory
        raise CheckpointError(f"{misfit}: it has {stored:,} parameters and needs {needed:,}")
    model = GPT(config, vocab_size)
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    found = {name: array.shape for name, array in checkpoint.weights.items()}
    for name in sorted(expected | found):
        if expected.get(name) != found.get(name):
            shapes = f"has shape {found.get(name)} and needs {expected.get(name)}"
            raise CheckpointError(f"{misfit}: {escape(name)[:80]} {shapes}")
    model.load_state_dict({name: torch.tensor(array) for name, array in checkpoint.weights.items()})
    return model.eval()
