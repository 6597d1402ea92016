"""Describe what each head attends to in a phrase, computed from its statistics."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from minigpt.config.schema import DataConfig
from minigpt.interpret.excerpt import characters
from minigpt.interpret.extract import extract
from minigpt.interpret.links import LINKS, RIVALS, is_on_stories, link_scores, linked_windows
from minigpt.interpret.scores import PATTERNS, Score, follows, head_scores
from minigpt.model.gpt import GPT
from minigpt.storage.checkpoint import Checkpoint
from minigpt.text.tokenizer import Ids, Tokenizer

NO_PATTERN = "no clear pattern"
BROAD = 0.9
"""A head without a pattern attends to many letters if its entropy is at least this fraction of the baseline."""
NEARBY = 0.25
"""A head without a pattern attends to nearby letters if its mean distance is at most this fraction of the baseline."""
WINDOWS, LINKED_WINDOWS, MAX_LENGTH = 4, 8, 256
"""The most windows of the validation split for patterns and for links, and the most tokens in a window."""

LEARNED = 0.05
"""A model has learned something if its loss is lower than that of a uniform guess by more than this, in nats."""


@dataclass(frozen=True)
class Description:
    """What a head attends to."""

    phrase: str
    share: float | None = None
    """The share of the head's attention on the keys of the phrase. None: the phrase is not a pattern or a link."""
    uniform: float | None = None
    """The same share for uniform attention."""


Seen = tuple[Tensor, Sequence[str]]
"""The attention weights (L, H, T, T) for a window, and its T characters."""


def score_model(
    model: GPT, tokenizer: Tokenizer, data: DataConfig, excerpt: Ids, split: Ids | None
) -> dict[str, Score]:
    """Return the statistics of all heads at the start of the validation `split`, or else in the `excerpt`.

    Include the statistics of links if the split is from `builtin:stories`.
    """
    length, split = min(model.config.context, MAX_LENGTH), excerpt[:0] if split is None else split
    starts = range(0, len(split) - length + 1, length)[: 16 * LINKED_WINDOWS]
    windows = [np.asarray(split[at : at + length]) for at in starts] or [excerpt]
    linked = islice(linked_windows(windows, tokenizer), LINKED_WINDOWS if is_on_stories(data) else 0)
    return mean_scores(
        [(extract(model, window).weights, characters(tokenizer, window)) for window in windows[:WINDOWS]],
        [(extract(model, window).weights, text) for window, text in linked],
    )


def mean_scores(seen: Sequence[Seen], linked: Iterable[Seen] = ()) -> dict[str, Score]:
    """Return the mean of each statistic over the windows.

    Args:
        seen: Windows for the patterns, the distance and the entropy.
        linked: Windows of `builtin:stories` for the links.
    """
    patterns = _mean([head_scores(weights, text) for weights, text in seen])
    return patterns | _mean([link_scores(weights, "".join(text)) for weights, text in linked])


def describe_heads(scores: Mapping[str, Score]) -> list[list[Description]]:
    """Describe each head, (L, H), by its statistics."""
    layers, heads = scores["entropy"].values.shape
    scores = {name: score for name, score in scores.items() if not math.isnan(score.uniform)}
    return [[_describe(scores, (layer, head)) for head in range(heads)] for layer in range(layers)]


def _mean(windows: Sequence[dict[str, Score]]) -> dict[str, Score]:
    """Return the mean of each statistic over the windows in which it has a value."""
    means = {}
    for name in windows[0] if windows else ():
        scores = [window[name] for window in windows if not math.isnan(window[name].uniform)] or [windows[0][name]]
        values = torch.stack([score.values for score in scores]).mean(0)
        means[name] = Score(values, sum(score.uniform for score in scores) / len(scores))
    return means


def _describe(scores: Mapping[str, Score], at: tuple[int, int]) -> Description:
    phrases = {name: phrase for name, phrase in (PATTERNS | LINKS).items() if name in scores}
    shares = {name: score.values[at].item() for name, score in scores.items()}
    # A head that finds a name must also attend to this name more than to the other child's name.
    baselines = {name: max(scores[name].uniform, shares.get(RIVALS.get(name, ""), 0.0)) for name in phrases}
    order = sorted(phrases, key=lambda name: baselines[name] - shares[name])
    followed = [name for name in order if follows(shares[name], baselines[name])]
    followed.sort(key=lambda name: name not in LINKS)  # links come first
    if not followed:
        return Description(_measured_phrase(scores, at))
    name = followed[0]
    return Description(phrases[name], *(float(f"{share:.4g}") for share in (shares[name], scores[name].uniform)))


def _measured_phrase(scores: Mapping[str, Score], at: tuple[int, int]) -> str:
    """Return a phrase for a head without a pattern."""
    if scores and scores["entropy"].values[at] >= BROAD * scores["entropy"].uniform:
        return "many letters at once"
    if scores and scores["distance"].values[at] <= NEARBY * scores["distance"].uniform:
        return "nearby letters"
    return NO_PATTERN


def untrained_warning(checkpoint: Checkpoint) -> str | None:
    """Return a warning if the model is untrained, or hardly better than a uniform guess, else None.

    With a vocabulary of one token, there is nothing to learn.
    """
    metadata = checkpoint.metadata
    if metadata.step == 0 and metadata.origin is None and not metadata.imported:
        return "This model is untrained (step 0)."
    uniform, loss = math.log(metadata.vocab_size), metadata.state.validation_loss
    if metadata.vocab_size == 1 or loss is None or min(loss, metadata.state.train_loss or math.inf) < uniform - LEARNED:
        return None
    return (
        f"This model has learned almost nothing: its validation loss is {loss:.3f}, "
        f"and that of a uniform guess is {uniform:.3f}."
    )
