"""Generate text, token by token.

The window holds the tokens that the model sees. Until the text fills the context, the window is the whole text. After
that, the window drops its oldest half each time it is full. A new window starts at position 0, so the engine processes
the window again.
"""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from minigpt.config.schema import SampleConfig
from minigpt.errors import CheckpointError
from minigpt.sampling.filters import choose, log_softmax
from minigpt.seeds import mix_seed
from minigpt.text.tokenizer import Tokenizer, Unknown, unix_newlines


class LanguageModel(Protocol):
    """The interface that `generate` needs."""

    context: int

    def start(self, ids: NDArray[np.int64], /) -> NDArray[np.float32]:
        """Start new sequences (B, T), and return the logits (B, V) of the next token."""

    def step(self, ids: NDArray[np.int64], /) -> NDArray[np.float32]:
        """Append one token to each sequence (B), and return the logits (B, V) of the next token."""


@dataclass(frozen=True)
class SampledChar:
    """One generated character."""

    sample: int
    """The index of its sample."""
    text: str
    logprob: float
    """Its log-probability in nats, summed over its tokens, at temperature 1 and before filtering."""


def generate(
    engine: LanguageModel,
    tokenizer: Tokenizer,
    prompt: str = "\n",
    settings: SampleConfig | None = None,
    *,
    num_samples: int = 1,
    stop: Sequence[str] = (),
    unknown: Unknown = "error",
) -> Iterator[SampledChar]:
    """Continue `prompt`, and yield each character as soon as it can no longer be part of a stop string.

    Args:
        engine: The model. It holds the state of one generation, so use a separate engine for each.
        tokenizer: The tokenizer of the model.
        prompt: The text to continue. An empty prompt is treated as a newline.
        settings: Length in tokens, temperature, filters and seed, but not the prompt.
        num_samples: Number of continuations to generate. This number does not change a sample, except for
            rounding.
        stop: Each sample ends just before the string that is completed first.
        unknown: How to handle prompt characters outside the vocabulary.

    Raises:
        UnknownCharacterError: `unknown` is "error" and the prompt has a character outside the vocabulary.
        CheckpointError: The logits are not finite.
    """
    ids = tokenizer.encode(unix_newlines(prompt), unknown)
    if len(ids) == 0:
        ids = tokenizer.encode("\n", "replace")
    samples = [_Sample(index, tokenizer, stop) for index in range(num_samples)]
    for tokens, logprobs in generate_ids(engine, ids, settings or SampleConfig(), num_samples=num_samples):
        for sample, token, logprob in zip(samples, tokens.tolist(), logprobs.tolist(), strict=True):
            if not sample.has_ended:
                yield from sample.push(token, logprob)
        if all(sample.has_ended for sample in samples):
            return
    for sample in samples:
        if not sample.has_ended:
            yield from sample.pending  # the beginning of a stop string that was never completed


def generate_ids(
    engine: LanguageModel, prompt: NDArray[Any], settings: SampleConfig, *, num_samples: int = 1
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float64]]]:
    """Continue the token ids `prompt` (T), and yield the tokens (B) and log-probabilities (B) of each step."""
    begin, end = len(prompt), len(prompt) + settings.length
    ids = np.empty((num_samples, end), dtype=np.int64)
    ids[:, :begin] = prompt
    generators = [random.Random(mix_seed(settings.seed, "sample", index)) for index in range(num_samples)]
    read_from = -1  # the start of the window that the engine has read
    for length in range(begin, end):
        start = window_start(length, begin, engine.context)
        if start == read_from:
            logits = engine.step(ids[:, length - 1])
        else:
            logits = engine.start(ids[:, start:length])
        if not np.isfinite(logits).all():
            raise CheckpointError("the logits of the model are not finite; an earlier checkpoint may work")
        read_from, scores = start, logits.astype(np.float64)
        uniform = np.array([generator.random() for generator in generators])
        tokens = ids[:, length] = choose(scores, settings, uniform)
        yield tokens, log_softmax(scores)[np.arange(num_samples), tokens]


def window_start(length: int, prompt_length: int, context: int) -> int:
    """Of `length` tokens, return the index of the first that the model sees.

    With a context of 8 and a short prompt, it is 0 for lengths up to 8, 4 for 9 to 12, 8 for 13 to 16, and so on.
    """
    first = max(0, prompt_length - context)  # a prompt longer than the context is cut at its start
    overflow = max(0, length - first - context)
    stride = max(1, context // 2)
    return first + math.ceil(overflow / stride) * stride


class _Sample:
    """One sample: its decoder, and the tail of its text that may begin a stop string."""

    def __init__(self, index: int, tokenizer: Tokenizer, stop: Sequence[str]) -> None:
        self.index, self.decode = index, tokenizer.decoder()
        self.stop = [unix_newlines(text) for text in stop if text]
        self.pending: list[SampledChar] = []
        self.logprob = 0.0
        self.has_ended = False

    def push(self, token: int, logprob: float) -> list[SampledChar]:
        """Append a token, and return the characters that are now final."""
        self.logprob += logprob
        for char in self.decode(token):  # a byte completes up to two characters
            self.pending.append(SampledChar(self.index, char, self.logprob))
            self.logprob = 0.0
        text = "".join(char.text for char in self.pending)
        stops = [at for at in map(text.find, self.stop) if at >= 0]
        self.has_ended = bool(stops)
        count = min(stops) if stops else len(text) - self._overlap(text)
        certain, self.pending = self.pending[:count], self.pending[count:]
        return certain

    def _overlap(self, text: str) -> int:
        """Return the length of the longest suffix of `text` that is a prefix of a stop string."""
        lengths = (n for stop in self.stop for n in range(1, len(stop)) if text.endswith(stop[:n]))
        return max(lengths, default=0)
