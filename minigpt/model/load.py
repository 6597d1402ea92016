"""Build the torch model of a configuration or a checkpoint, and the NumPy engine of a torch model."""

import torch

from minigpt.config.schema import ModelConfig
from minigpt.errors import NoAttentionError, escape
from minigpt.model.gpt import GPT, use_kernels
from minigpt.model.kernels import CPU
from minigpt.model.recurrent import Recurrent
from minigpt.sampling.load import AnyEngine, build_engine
from minigpt.storage.checkpoint import Checkpoint

Model = GPT | Recurrent
"""A language model: ids (B, T) to logits (B, T, V)."""


def build_model(config: ModelConfig, vocab_size: int) -> Model:
    """Return a new model. Its weights come from torch's global generator."""
    model = (Recurrent if config.is_recurrent else GPT)(config, vocab_size)
    use_kernels(model, CPU)
    return model


def load_model(checkpoint: Checkpoint) -> Model:
    """Return the model of a checkpoint, on the CPU and in eval mode."""
    model = build_model(checkpoint.config.model, checkpoint.tokenizer.vocab_size)
    load_weights(model, checkpoint)
    return model.eval()


def load_weights(model: Model, checkpoint: Checkpoint) -> None:
    """Load the weights of a checkpoint into a model of the same configuration."""
    model.load_state_dict({name: torch.tensor(array) for name, array in checkpoint.weights.items()})


def numpy_engine(model: Model) -> AnyEngine:
    """Return the NumPy engine with the weights of a torch model."""
    weights = {name: tensor.numpy(force=True) for name, tensor in model.state_dict().items()}
    return build_engine(model.config, weights)


def load_transformer(checkpoint: Checkpoint) -> GPT:
    """Return the model of a checkpoint, to look at its attention. Raises NoAttentionError if it is recurrent."""
    model, path = load_model(checkpoint), checkpoint.path
    if isinstance(model, Recurrent):
        raise NoAttentionError(f"{escape(path)} is a recurrent network and has no attention", path)
    return model
