"""Build the torch model of a checkpoint."""

import torch

from minigpt.model.gpt import GPT
from minigpt.storage.checkpoint import Checkpoint


def load_model(checkpoint: Checkpoint) -> GPT:
    """Return the model of a checkpoint, on the CPU and in eval mode."""
    model = GPT(checkpoint.config.model, checkpoint.tokenizer.vocab_size)
    model.load_state_dict({name: torch.tensor(array) for name, array in checkpoint.weights.items()})
    return model.eval()
