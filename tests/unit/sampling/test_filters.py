"""Tokens follow the filtered distribution."""

import math
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from minigpt.config.schema import SampleConfig
from minigpt.sampling.filters import choose, log_softmax, weigh

P = [0.1, 0.4, 0.3, 0.2]
TIES = [0.25, 0.25, 0.25, 0.25]


def reference(logits: list[float], settings: SampleConfig) -> list[float]:
    """Return the probabilities by the definition of each filter, one token at a time."""
    weights = {i: math.exp((x - max(logits)) / settings.temperature) for i, x in enumerate(logits)}
    ranked = sorted(weights, key=lambda i: (-weights[i], i))
    if settings.top_k:
        ranked = ranked[: settings.top_k]
    total, nucleus, mass = sum(weights[i] for i in ranked), [], 0.0
    for i in ranked:
        if mass < settings.top_p * total or settings.top_p == 1:
            nucleus.append(i)
        mass += weights[i]
    kept = [i for i in nucleus if weights[i] >= settings.min_p * weights[ranked[0]]]
    total = sum(weights[i] for i in kept)
    return [weights[i] / total if i in kept else 0.0 for i in range(len(logits))]


def probabilities(logits: Any, settings: SampleConfig) -> np.ndarray:
    weights = weigh(np.array([logits], dtype=np.float64), settings)[0]
    return weights / weights.sum()


def kept(p: list[float], **settings: Any) -> set[int]:
    found = probabilities(np.log(p), SampleConfig(**{"temperature": 1, **settings}))
    return set(np.flatnonzero(found).tolist())


@pytest.mark.parametrize(
    ("settings", "p", "tokens"),
    [
        ({}, P, {0, 1, 2, 3}),
        ({"top_k": 2}, P, {1, 2}),
        ({"top_k": 99}, P, {0, 1, 2, 3}),
        ({"top_k": 2}, TIES, {0, 1}),  # exactly two, also among equals
        ({"top_p": 1e-9}, P, {1}),
        ({"top_p": 0.41}, P, {1, 2}),
        ({"top_p": 0.5}, TIES, {0, 1}),  # reached exactly
        ({"min_p": 0.26}, P, {1, 2, 3}),
        ({"min_p": 1}, TIES, {0, 1, 2, 3}),
        # The order of the filters
        ({"temperature": 0.5, "top_p": 0.5}, P, {1}),  # 1 and 2 without the temperature
        ({"top_k": 3, "top_p": 0.75}, P, {1, 2}),  # 0.7 of the 0.9 left by top-k
        ({"top_p": 0.5, "min_p": 0.6}, P, {1, 2}),
    ],
)
def test_a_filter_keeps_these_tokens(settings: dict[str, Any], p: list[float], tokens: set[int]) -> None:
    assert kept(p, **settings) == tokens


@hypothesis.given(
    logits=st.lists(st.floats(-30, 30, width=16), min_size=1, max_size=9),
    temperature=st.floats(0.05, 20),
    top_k=st.integers(0, 10),
    top_p=st.sampled_from([1.0, 0.93, 0.511, 0.123]),
    min_p=st.sampled_from([0.0, 0.0123, 0.345]),
)
def test_filters_match_their_definitions(
    logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    settings = SampleConfig(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    expected = reference(logits, settings)
    assert probabilities(logits, settings).tolist() == pytest.approx(expected, abs=1e-12)


@hypothesis.given(
    logits=st.lists(st.floats(-60, 60, width=32) | st.sampled_from([-1e38, 1e38, 0.0]), min_size=1, max_size=9),
    temperature=st.floats(0, 1e9, exclude_min=True),
    top_k=st.integers(0, 10),
    top_p=st.floats(1e-300, 1),
    min_p=st.floats(0, 1),
)
def test_extreme_settings_keep_the_likeliest_token_and_choose_no_filtered_one(
    logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    settings = SampleConfig(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    p = probabilities(logits, settings)
    assert p.sum() == pytest.approx(1)
    for uniform in (0.0, 0.5, 1 - 2**-53):
        token = choose(np.array([logits]), settings, np.array([uniform]))
        assert p[token[0]] > 0


@pytest.mark.parametrize(
    "settings",
    [{}, {"temperature": 0.5}, {"top_k": 3}, {"top_p": 0.6}, {"min_p": 0.3}],
    ids=str,
)
def test_tokens_follow_the_distribution(settings: dict[str, Any]) -> None:
    """Evenly spaced uniform numbers choose each token exactly as often as its probability says, to one token."""
    logits = np.random.default_rng(3).normal(0, 2, (1, 12))
    config, count = SampleConfig(**{"temperature": 1.0, **settings}), 20_000
    uniform = (np.arange(count) + 0.5) / count
    tokens = choose(np.repeat(logits, count, 0), config, uniform)
    expected = count * probabilities(logits[0], config)
    assert np.abs(np.bincount(tokens, minlength=12) - expected).max() <= 1


def test_temperature_0_takes_the_likeliest_token() -> None:
    logits = np.array([[2.0, -1.0, 1.5, 0.0], [-2.0, -1.0, -1.5, -3.0]])
    assert choose(logits, SampleConfig(temperature=0), np.array([0.9, 0.9])).tolist() == [0, 1]


def test_log_softmax_is_exact_and_does_not_overflow() -> None:
    logits = np.array([[1e4, 1e4 + 1, -1e4], [0.0, 0.0, 0.0]])
    expected = [[-1.3132616875182228, -0.31326168751822286, -20001.313261687518], [-math.log(3)] * 3]
    np.testing.assert_allclose(log_softmax(logits), expected, rtol=1e-12)
