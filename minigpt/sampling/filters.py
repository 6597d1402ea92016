"""Choose the next token: temperature, top-k, top-p and min-p, in this order, then sampling."""

import numpy as np
from numpy.typing import NDArray

from minigpt.config.schema import SampleConfig

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def choose(logits: Floats, settings: SampleConfig, uniform: Floats) -> Ints:
    """Sample a token for each sequence, (B). At temperature 0, take the most likely token.

    Args:
        logits: The model's logits, (B, V).
        settings: Temperature and filters.
        uniform: A random number in [0, 1) for each sequence, (B).
    """
    if settings.temperature == 0:
        likeliest: Ints = logits.argmax(-1)
        return likeliest
    # Invert the cumulative distribution (https://en.wikipedia.org/wiki/Inverse_transform_sampling).
    cumulative = weigh(logits, settings).cumsum(-1)  # (B, V)
    tokens: Ints = (cumulative <= uniform[:, None] * cumulative[:, -1:]).sum(-1)
    return tokens


def weigh(logits: Floats, settings: SampleConfig) -> Floats:
    """Return the unnormalized probability of each token (B, V), zero if filtered out."""
    # The largest exponent is zero, so any positive temperature works.
    with np.errstate(over="ignore"):
        weights: Floats = np.exp((logits - logits.max(-1, keepdims=True)) / settings.temperature)
    if 0 < settings.top_k < logits.shape[-1]:
        order = np.argsort(-weights, axis=-1, kind="stable")
        np.put_along_axis(weights, order[:, settings.top_k :], 0.0, -1)
    if settings.top_p < 1:  # Holtzman et al. 2020, https://arxiv.org/abs/1904.09751, section 3.1
        order = np.argsort(-weights, axis=-1, kind="stable")
        sorted_weights = np.take_along_axis(weights, order, -1)
        before = sorted_weights.cumsum(-1) - sorted_weights
        nucleus = before < settings.top_p * sorted_weights.sum(-1, keepdims=True)
        np.put_along_axis(weights, order, sorted_weights * nucleus, -1)
    if settings.min_p > 0:  # Nguyen et al. 2024, https://arxiv.org/abs/2407.01082
        weights[weights < settings.min_p * weights.max(-1, keepdims=True)] = 0.0
    return weights


def log_softmax(logits: Floats) -> Floats:
    """Return the log-probabilities (B, V)."""
    shifted = logits - logits.max(-1, keepdims=True)
    log_probs: Floats = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return log_probs
