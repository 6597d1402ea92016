"""The data that questions about a trained model use, and the rule that turns a measurement into a verdict.

A question measures one value per window of the validation split and compares the mean with a margin. The verdict is
SUPPORTED or NOT SUPPORTED if the mean is above or below the margin with 99% confidence (Student's t), otherwise
INCONCLUSIVE. Questions that use a different rule explain it.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from minigpt.course.claims.claim import Head
from minigpt.errors import TextError, UserError
from minigpt.interpret.excerpt import characters
from minigpt.interpret.extract import Activations, ablate_heads, extract
from minigpt.interpret.links import link_scores, linked_windows
from minigpt.interpret.scores import Score, head_scores
from minigpt.model.gpt import GPT
from minigpt.model.load import load_transformer
from minigpt.seeds import mix_seed
from minigpt.storage.checkpoint import Checkpoint
from minigpt.text.stories import links
from minigpt.text.tokenizer import Ids
from minigpt.training.evaluate import evaluate

WINDOWS, MAX_LENGTH = 8, 256
"""The number of windows, and the maximum number of tokens in each."""
LINKED_WINDOWS = 32
"""The number of windows for the links of `builtin:stories`. Some windows have none."""
MIN_CONTEXT = 4
SUPPORTED, NOT_SUPPORTED, INCONCLUSIVE = "SUPPORTED", "NOT SUPPORTED", "INCONCLUSIVE"
NOT_APPLICABLE = "NOT APPLICABLE"
MIN_DIFFERENCE = 0.02
"""The smallest difference that counts, in nats or in units of cosine or divergence."""
SHUFFLES = 2000
T_QUANTILES = {0.995: (9.925, 5.841, 4.604, 4.032, 3.707, 3.499), 0.9995: (31.6, 12.92, 8.610, 6.869, 5.959, 5.408)}
"""Quantiles of Student's t distribution with 2 to 7 degrees of freedom."""


@dataclass(frozen=True)
class Evidence:
    """A trained model, and the validation split to evaluate it on.

    Raises:
        UserError: The context or the split is too short.
    """

    loaded: Checkpoint
    tokens: Ids

    def __post_init__(self) -> None:
        if self._length < MIN_CONTEXT:
            raise UserError(
                f"the model has a context of {self._length} tokens; the questions need at least {MIN_CONTEXT}"
            )
        if len(self.tokens) < self._length:
            raise TextError(
                f"the validation split has {len(self.tokens)} tokens; the questions need at least {self._length}"
            )

    @property
    def _length(self) -> int:
        return min(self.loaded.config.model.context, MAX_LENGTH)

    def _all_windows(self) -> Iterator[Ids]:
        for start in range(0, len(self.tokens) - self._length + 1, self._length):
            yield np.asarray(self.tokens[start : start + self._length])

    @cached_property
    def windows(self) -> list[Ids]:
        """The first windows of the split, which most questions use."""
        return list(islice(self._all_windows(), WINDOWS))

    @cached_property
    def model(self) -> GPT:
        with torch.random.fork_rng(devices=[]):  # a new model samples its initial weights
            return load_transformer(self.loaded)

    @cached_property
    def untrained_model(self) -> GPT:
        """The same model with its initial weights."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(mix_seed(self.loaded.config.train.seed, "weights"))
            return GPT(self.loaded.config.model, self.loaded.tokenizer.vocab_size).eval()

    @cached_property
    def activations(self) -> list[Activations]:
        """The activations of the model for each window."""
        return [extract(self.model, window) for window in self.windows]

    @cached_property
    def untrained_activations(self) -> list[Activations]:
        """The activations of the untrained model for each window."""
        return [extract(self.untrained_model, window) for window in self.windows]

    @cached_property
    def _scores(self) -> list[dict[str, Score]]:
        pairs = zip(self.activations, self.windows, strict=True)
        return [head_scores(seen.weights, characters(self.loaded.tokenizer, window)) for seen, window in pairs]

    def scores(self, name: str) -> tuple[Tensor, Tensor]:
        """Return the score `name` of each head for each window, (N, L, H), and that of uniform attention, (N)."""
        found = [scores[name] for scores in self._scores]
        return torch.stack([score.values for score in found]), torch.tensor([score.uniform for score in found])

    @cached_property
    def linked_windows(self) -> list[tuple[Ids, str]]:
        """The first windows of `builtin:stories` with each kind of link, and their texts."""
        return list(islice(linked_windows(self._all_windows(), self.loaded.tokenizer), LINKED_WINDOWS))

    @cached_property
    def _link_scores(self) -> list[tuple[dict[str, Score], dict[str, Score]]]:
        return [
            (
                link_scores(extract(self.model, window).weights, text),
                link_scores(extract(self.untrained_model, window).weights, text),
            )
            for window, text in self.linked_windows
        ]

    def link_scores(self, name: str) -> tuple[Tensor, Tensor, Tensor]:
        """Return a score of `LINKS` for each linked window: of heads now and untrained, (N, L, H), and uniform (N)."""
        now, then = ([scores[name] for scores in column] for column in zip(*self._link_scores, strict=True))
        trained, untrained = (torch.stack([score.values for score in scores]) for scores in (now, then))
        return trained, untrained, torch.tensor([score.uniform for score in now])

    def link_probability(self, kind: str) -> float:
        """Return the mean probability of the character to which a link of this kind leads, in the linked windows."""
        right = []
        for window, text in self.linked_windows:
            if queries := [link.query for link in links(text) if link.kind == kind]:
                probabilities = extract(self.model, window).logits.softmax(-1)
                right += [probabilities[query, window[query + 1]].item() for query in queries]
        return sum(right) / len(right) if right else math.nan

    def losses(self) -> Tensor:
        """Return the current loss of the model for each window, (N), in nats."""
        return torch.tensor([evaluate(self.model, window, self.loaded.tokenizer).loss for window in self.windows])

    @cached_property
    def costs(self) -> Tensor:
        """The increase in loss when each head is removed, (N, L, H), in nats."""
        shape = self.loaded.config.model
        usual, found = self.losses(), []
        for layer in range(shape.n_layer):
            for head in range(shape.n_head):
                with ablate_heads(self.model, {(layer, head)}):
                    found.append(self.losses() - usual)
        return torch.stack(found, 1).view(len(self.windows), shape.n_layer, shape.n_head)


class Answer(NamedTuple):
    """The answer to a question."""

    verdict: str
    measured: str
    """The measured values. If there are heads, a line for each."""
    heads: tuple[Head, ...] = ()


@dataclass(frozen=True)
class Question:
    """A question about a trained model, the statement in the lecture notes behind it, and the check that answers it."""

    id: int
    question: str
    notes_say: str
    """The statement, in our words. It may be false for a model."""
    notes: tuple[str, ...]
    check: Callable[[Evidence], Answer]


def judge(values: Tensor, margin: float = 0.0, confidence: float = 0.995) -> str:
    """Return the verdict on whether the mean of `values` (one per window) exceeds `margin`.

    `confidence` is a quantile: 0.995 means 99% confidence, two-sided.
    """
    values = values.double()
    if len(values) < 3 or not values.isfinite().all():
        return INCONCLUSIVE
    quantile = T_QUANTILES[confidence][min(len(values), 8) - 3]
    mean, error = values.mean().item(), values.std().item() / math.sqrt(len(values))
    return verdict(mean - quantile * error > margin, mean + quantile * error < margin)


def verdict(is_above: bool | Tensor, is_below: bool | Tensor) -> str:
    """Return the verdict for a value that is above one limit, below another, or between the two."""
    if is_above:
        return SUPPORTED
    return NOT_SUPPORTED if is_below else INCONCLUSIVE


def judge_rise(layers: Tensor) -> str:
    """Return the verdict on whether values (N, L) rise with depth, in 75% of all pairs of layers."""
    return judge(kendall_tau(layers), 0.5) if layers.size(1) > 1 else INCONCLUSIVE


def kendall_tau(values: Tensor) -> Tensor:
    """Return how consistently `values` (N, L) rise along L: 1 if every pair rises, -1 if every pair falls."""
    later, earlier = torch.tril_indices(values.size(1), values.size(1), -1)
    return (values[:, later] - values[:, earlier]).sign().mean(1)


def rank_correlation(x: Tensor, y: Tensor) -> tuple[float, float]:
    """Return the mean Spearman correlation of the rows of x and y (L, H), and its 95% quantile for shuffled rows.

    Skip rows of equal values, which have no correlation. If no rows are left, both values are nan.
    """
    rows = [(a, b) for a, b in zip(x.double(), y.double(), strict=True) if a.max() > a.min() and b.max() > b.min()]
    if not rows:
        return math.nan, math.nan
    ranked = [(_ranks(a), _ranks(b)) for a, b in rows]
    generator = torch.Generator().manual_seed(mix_seed("claim", "shuffles"))
    shuffled = [
        sum((a @ b[torch.randperm(len(b), generator=generator)]).item() for a, b in ranked) / len(ranked)
        for _ in range(SHUFFLES)
    ]
    return sum((a @ b).item() for a, b in ranked) / len(ranked), float(np.quantile(shuffled, 0.95))


def _ranks(values: Tensor) -> Tensor:
    """Return the ranks of `values` (H), centered and scaled to length 1. Tied values get their mean rank."""
    below, same = (values[:, None] > values).sum(1), (values[:, None] == values).sum(1)
    return F.normalize(below + (same - 1) / 2 - (len(values) - 1) / 2, dim=0)
