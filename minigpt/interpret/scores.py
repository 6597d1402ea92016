"""Statistics of attention heads. The baseline of a statistic is its value for uniform attention.

Statistics skip the first query, because it can only attend to itself.
"""

import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from minigpt.interpret.excerpt import whole_characters
from minigpt.model.gpt import causal_mask

PATTERNS = {
    "previous": "the previous letter",
    "same": "the same letter earlier",
    "induction": "what followed this letter before",  # Olsson et al. 2022
    "word": "the start of the word",
    "line": "the start of the line",
    "first": "the first letter of the text",  # often an attention sink (Xiao et al. 2023)
    "self": "this letter itself",
}
"""The keys of each pattern. Its statistic is the share of attention on them, averaged over queries with such keys."""
MIN_SHARE, MIN_MARGIN = 0.4, 0.15
"""A head follows a pattern if the keys get at least this share, and at least this much more than the baseline."""
SPACING = 16
"""A text has words if it has at least one space per this number of characters. Chinese and Thai texts have fewer."""


@dataclass(frozen=True)
class Score:
    """A head statistic with one value per head, NaN if no query in the text has the keys."""

    values: Tensor
    """The statistic of each head, (L, H)."""
    uniform: float
    """The baseline: the statistic of uniform attention."""


def head_scores(weights: Tensor, characters: Sequence[str]) -> dict[str, Score]:
    """Return the statistics of the attention weights (L, H, T, S) by name: PATTERNS, distance and entropy."""
    position = torch.arange(len(characters))
    measures: dict[str, Callable[[Tensor], Tensor]] = {
        "distance": lambda rows: (rows * (position[:, None] - position)[1:]).sum(-1).mean(-1),  # in tokens
        "entropy": lambda rows: torch.special.entr(rows).sum(-1).mean(-1),  # in nats
    }
    weights, uniform = weights.double(), uniform_attention(len(characters))
    return shares(weights, pattern_keys(characters)) | {
        name: Score(measure(weights[..., 1:, :]), measure(uniform[1:]).item()) for name, measure in measures.items()
    }


def shares(weights: Tensor, masks: Mapping[str, Tensor]) -> dict[str, Score]:
    """Return the shares of the attention weights (L, H, T, S) on the keys in `masks` (T, S), by name."""
    weights, uniform = weights.double(), uniform_attention(weights.size(-1))
    return {
        name: Score(attention_share(weights, keys), attention_share(uniform, keys).item())
        for name, keys in masks.items()
    }


def uniform_attention(T: int) -> Tensor:
    """Return uniform causal attention, (T, S)."""
    mask = causal_mask(T, T, torch.device("cpu")).double()
    return mask / mask.sum(-1, keepdim=True)


def attention_share(weights: Tensor, keys: Tensor) -> Tensor:
    """Return the share of `weights` (..., T, S) on `keys` (T, S, bool), averaged over queries that have a key."""
    queries = keys.any(-1)  # (T,)
    queries[:1] = False
    return (weights[..., queries, :] * keys[queries]).sum(-1).mean(-1)


def pattern_keys(characters: Sequence[str]) -> dict[str, Tensor]:
    """Return the keys of each pattern for each query, as masks (T, S)."""
    T = len(characters)
    position = torch.arange(T)
    number = {character: i for i, character in enumerate(dict.fromkeys(characters))}
    token = torch.tensor([number[character] for character in characters], dtype=torch.long)
    past = position[:, None] > position  # (T, S)
    same = (token[:, None] == token) & past
    after_same = torch.zeros_like(same)
    after_same[:, 1:] = same[:, :-1]
    return {
        "previous": position[:, None] - 1 == position,
        "self": position[:, None] == position,
        "first": (position == 0).expand(T, T),
        "same": same,
        "induction": after_same & past,
        "word": _segment_starts(_in_words(characters)),
        "line": _segment_starts(["\n" not in character for character in characters]),
    }


def are_letters(characters: Sequence[str]) -> list[bool]:
    """Return whether each token consists of letters, or is part of one. Digits, marks, _ and ' count as letters."""

    def is_letter(c: str) -> bool:
        return c.isalnum() or c in "'’_" or unicodedata.category(c).startswith("M")

    return [all(map(is_letter, text)) for text, tokens in whole_characters(characters) for _ in range(tokens)]


def _in_words(characters: Sequence[str]) -> list[bool]:
    """Return whether each token is part of a word."""
    text = "".join(text for text, _ in whole_characters(characters))
    has_words = text.count(" ") * SPACING >= len(text)
    return [has_words and is_letter for is_letter in are_letters(characters)]


def _segment_starts(is_inside: Sequence[bool]) -> Tensor:
    """Return a mask (T, S): each position in a segment, except its first, selects the first position of the segment."""
    starts = torch.zeros(len(is_inside), len(is_inside), dtype=torch.bool)
    start = 0
    for position, inside in enumerate(is_inside):
        if not inside:
            start = position + 1
        elif position > start:
            starts[position, start] = True
    return starts


def follows(share: float, baseline: float) -> bool:
    """Return whether a share of attention reaches `MIN_SHARE`, and exceeds the baseline by `MIN_MARGIN`."""
    return share >= max(MIN_SHARE, baseline + MIN_MARGIN)
