"""The number of parameters of a model, and the work of a training step."""

import math

from minigpt.config.schema import ModelConfig
from minigpt.config.shapes import parameter_shapes


def count_parameters(config: ModelConfig, vocab_size: int) -> int:
    """Return the number of parameters without building the model."""
    return sum(math.prod(shape) for shape in parameter_shapes(config, vocab_size).values())


def training_flops(config: ModelConfig, vocab_size: int) -> int:
    """Return the floating-point operations to train on one token (Chowdhery et al. 2022, appendix B).

    The forward pass takes two operations for each weight of a matrix, and 4 T C (context T, width C) in each layer
    for attention, half of them masked. The backward pass takes twice as many. Recurrent layers have no attention.
    """
    attention = 0 if config.is_recurrent else 4 * config.n_layer * config.context * config.n_embd
    shapes = parameter_shapes(config, vocab_size).items()
    matrices = [math.prod(shape) for name, shape in shapes if len(shape) == 2 and name != "position_embedding.weight"]
    return 3 * (2 * sum(matrices) + attention)
