"""The names and shapes of a model's parameters, and its constants."""

import math

from minigpt.config.schema import ModelConfig

NORM_EPS = {"layernorm": 1e-5, "rmsnorm": 1e-6}
POSITION_BASE = 10_000.0
"""The base of the wavelengths of sinusoidal positions and of RoPE."""


def hidden_width(config: ModelConfig) -> int:
    """Return the hidden width of the MLP: 4 C, or 8 C / 3 rounded up to a multiple of 8 for SwiGLU.

    SwiGLU's three matrices then have about as many parameters as the two matrices of an MLP of width 4 C
    (Shazeer 2020, https://arxiv.org/abs/2002.05202).
    """
    width = 4 * config.n_embd
    return 8 * math.ceil(width * 2 / 3 / 8) if config.activation == "swiglu" else width


def parameter_shapes(config: ModelConfig, vocab_size: int) -> dict[str, tuple[int, ...]]:
    """Return the shape of each parameter by its name in the `state_dict()` of the model."""
    if config.is_recurrent:
        return _recurrent_shapes(config, vocab_size)
    C, hidden = config.n_embd, hidden_width(config)
    shapes: dict[str, tuple[int, ...]] = {"token_embedding.weight": (vocab_size, C)}
    if config.position == "learned":
        shapes["position_embedding.weight"] = (config.context, C)
    linear = {"attention.qkv": (3 * C, C), "attention.proj": (C, C), "mlp.up": (hidden, C), "mlp.down": (C, hidden)}
    if config.activation == "swiglu":
        linear["mlp.gate"] = (hidden, C)
    norms = ["norm"]
    for block in (f"blocks.{index}" for index in range(config.n_layer)):
        norms += [f"{block}.norm1", f"{block}.norm2"]
        for name, shape in linear.items():
            shapes[f"{block}.{name}.weight"] = shape
            if config.bias:
                shapes[f"{block}.{name}.bias"] = shape[:1]
        if config.qk_norm:
            shapes[f"{block}.attention.qk_norm.weight"] = (config.head_size,)
    for norm in norms:
        shapes[f"{norm}.weight"] = (C,)
        if config.bias and config.norm == "layernorm":
            shapes[f"{norm}.bias"] = (C,)
    return shapes


GATES = {"rnn": 1, "gru": 3, "lstm": 4}
"""Vectors that a step of a recurrent layer computes from its input and its state."""


def _recurrent_shapes(config: ModelConfig, vocab_size: int) -> dict[str, tuple[int, ...]]:
    C, outputs = config.n_embd, GATES[config.family] * config.n_embd
    shapes: dict[str, tuple[int, ...]] = {"token_embedding.weight": (vocab_size, C)}
    for index in range(config.n_layer):
        for part in ("ih", "hh"):
            shapes[f"blocks.{index}.weight_{part}_l0"] = (outputs, C)
            if config.bias:
                shapes[f"blocks.{index}.bias_{part}_l0"] = (outputs,)
    return shapes
