"""How large a model is, and how much work a training step is."""

from minigpt.config.schema import ModelConfig
from minigpt.model.gpt import GPT, hidden_width


def count_parameters(config: ModelConfig, vocab_size: int) -> int:
    """Return the number of parameters without building the model."""
    C, hidden = config.n_embd, hidden_width(config)
    norm = 2 * C if config.norm == "layernorm" and config.bias else C
    matrices = [(3 * C, C), (C, C), *[(hidden, C)] * (2 if config.activation == "swiglu" else 1), (C, hidden)]
    block = 2 * norm + sum(rows * columns + rows * config.bias for rows, columns in matrices)
    block += config.qk_norm * config.head_size
    positions = config.context * C if config.position == "learned" else 0
    return vocab_size * C + positions + config.n_layer * block + norm


def flops_per_token(model: GPT) -> int:
    """Return the floating-point operations to train on one token (Kaplan et al. 2020, table 1).

    The forward pass takes two for each weight of a matrix, and 4 T C in each layer for attention, half of it masked.
    The backward pass takes twice as many.
    """
    config = model.config
    matrices = sum(p.numel() for p in model.blocks.parameters() if p.ndim == 2) + model.token_embedding.weight.numel()
    return 3 * (2 * matrices + 4 * config.n_layer * config.context * config.n_embd)
