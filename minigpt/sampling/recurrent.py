"""The recurrent networks in NumPy, as model/recurrent.py computes them in PyTorch.

The state replaces the KV cache. It has a fixed size, so a step costs the same however long the text is.

Symbols in shapes: B sequences, T tokens in each, C width, V vocabulary size.
"""

import math
import sys
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from minigpt.config.schema import ModelConfig
from minigpt.sampling.engine import Array


class RecurrentEngine:
    """Predict the next token of B sequences of equal length."""

    context = sys.maxsize
    """No limit: the state replaces the tokens."""

    def __init__(self, config: ModelConfig, weights: Mapping[str, Array]) -> None:
        """Prepare a model. `weights` uses the names in `Recurrent.state_dict()`."""
        self.parts = 2 if config.family == "lstm" else 1  # the hidden state and, in an LSTM, the cell
        self.step_layer = {"rnn": rnn_step, "lstm": lstm_step, "gru": gru_step}[config.family]
        self.unembedding = weights["token_embedding.weight"].T  # (C, V)
        self.embedding = weights["token_embedding.weight"] * math.sqrt(config.n_embd)  # (V, C)
        self.layers = [_layer(weights, f"blocks.{index}.") for index in range(config.n_layer)]

    def start(self, ids: NDArray[np.int64]) -> Array:
        """Start new sequences (B, T), and return the logits (B, V) of the next token."""
        B, C = len(ids), self.embedding.shape[1]
        self.states = [np.zeros((self.parts, B, C), np.float32) for _ in self.layers]
        for token in ids.T:
            logits = self.step(token)
        return logits

    def step(self, ids: NDArray[np.int64]) -> Array:
        """Append one token to each sequence (B), and return the logits (B, V) of the next token."""
        x: Array = self.embedding[ids]  # (B, C)
        for index, (layer, state) in enumerate(zip(self.layers, self.states, strict=True)):
            y = self.step_layer(x @ layer[0] + layer[2], state[0] @ layer[1] + layer[3], state)  # (B, C)
            x = x + y if index else y
        logits: Array = x @ self.unembedding
        return logits


def rnn_step(x: Array, h: Array, state: Array) -> Array:
    """Update `state` (1, B, C) of an Elman network in place, and return the new hidden state.

    `x` and `h` (B, gates * C) are the input and the hidden state after their linear layers, biases included.
    """
    new: Array = np.tanh(x + h, out=state[0])
    return new


def lstm_step(x: Array, h: Array, state: Array) -> Array:
    """Update `state` (2, B, C), the hidden state and the cell of an LSTM, in place. Return the new hidden state."""
    input, forget, new, output = np.split(x + h, 4, axis=1)  # the order of PyTorch
    cell = _sigmoid(forget) * state[1] + _sigmoid(input) * np.tanh(new)
    hidden: Array = _sigmoid(output) * np.tanh(cell)
    state[:] = hidden, cell
    return hidden


def gru_step(x: Array, h: Array, state: Array) -> Array:
    """Update `state` (1, B, C) of a GRU in place, and return the new hidden state."""
    (reset, update, new), (reset_h, update_h, new_h) = np.split(x, 3, axis=1), np.split(h, 3, axis=1)
    candidate = np.tanh(new + _sigmoid(reset + reset_h) * new_h)
    keep = _sigmoid(update + update_h)
    hidden: Array = keep * state[0] + (1 - keep) * candidate
    state[0] = hidden
    return hidden


def _sigmoid(x: Array) -> Array:
    y: Array = 0.5 + 0.5 * np.tanh(0.5 * x)  # exp would overflow
    return y


def _layer(weights: Mapping[str, Array], prefix: str) -> tuple[Array, ...]:
    """Return the matrices (C, gates C) of the input and of the state, and their biases (gates C)."""
    matrices = [np.ascontiguousarray(weights[f"{prefix}weight_{part}_l0"].T) for part in ("ih", "hh")]
    zeros = np.zeros(matrices[0].shape[1], np.float32)
    return *matrices, *(weights.get(f"{prefix}bias_{part}_l0", zeros) for part in ("ih", "hh"))
