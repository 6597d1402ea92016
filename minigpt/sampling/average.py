"""The average prediction of several engines, as model/average.py computes it in PyTorch."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from minigpt.sampling.engine import Array
from minigpt.sampling.filters import log_softmax
from minigpt.sampling.load import AnyEngine


class AverageEngine:
    """Predict the next token of B sequences of equal length. All engines see the window of the shortest context."""

    def __init__(self, engines: Sequence[AnyEngine]) -> None:
        self.engines, self.context = engines, min(engine.context for engine in engines)

    def start(self, ids: NDArray[np.int64]) -> Array:
        """Start new sequences (B, T), and return the logits (B, V) of the next token."""
        return self._mean(lambda engine: engine.start(ids))

    def step(self, ids: NDArray[np.int64]) -> Array:
        """Append one token to each sequence (B), and return the logits (B, V) of the next token."""
        return self._mean(lambda engine: engine.step(ids))

    def _mean(self, logits: Callable[[AnyEngine], Array]) -> Array:
        all_logits = np.stack([logits(engine).astype(np.float64) for engine in self.engines])  # (engines, B, V)
        log_probs = log_softmax(all_logits)
        mean = np.logaddexp.reduce(log_probs) - np.log(len(all_logits)) + (all_logits - log_probs).mean(0)
        logits_of_mean: Array = mean.astype(np.float32)
        return logits_of_mean
