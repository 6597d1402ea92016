"""Score the heads of a model of `builtin:stories` where the text shows what they must look for."""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from minigpt.config.schema import DataConfig
from minigpt.interpret.scores import Score, attention_share, uniform_attention
from minigpt.text.stories import links
from minigpt.text.tokenizer import Ids, Tokenizer

LINKS = {
    "she": "the girl's name, after She",
    "he": "the boy's name, after He",
    "pronoun": "He or She, before a name",
    "copy": "how this word went on before",
}
"""The keys of each link. Its score is the share of attention on them, averaged over the positions with such a link."""
SCORES = ("copy", "he", "not he", "she", "not she", "pronoun")
"""The scores of links. "not he" is the attention to the other child's name, at the positions of "he"."""


def is_on_stories(data: DataConfig) -> bool:
    """Whether the validation split is from `builtin:stories`."""
    return all(source.startswith("builtin:stories") for source in data.val_source or data.source)


def linked_windows(windows: Iterable[Ids], tokenizer: Tokenizer) -> Iterator[tuple[Ids, str]]:
    """Yield the windows with each kind of link, and their texts. Only every fourth window has a pronoun's."""
    for window in windows:
        text = tokenizer.decode(window)
        if len(text) == len(window) and {link.kind for link in links(text)} > {"copy"}:
            yield window, text


def link_scores(weights: Tensor, text: str) -> dict[str, Score]:
    """Return the scores of the attention weights (L, H, T, S) for a text of T characters, by the names of SCORES.

    A score is NaN if the text has no such link.
    """
    T, weights = len(text), weights.double()
    masks = {name: torch.zeros(T, T, dtype=torch.bool) for name in SCORES}
    for link in links(text):
        masks[link.kind][link.query, list(link.keys)] = True
        if link.rivals:
            masks["pronoun"][link.query, list(link.pronoun)] = True
            masks[f"not {link.kind}"][link.query, list(link.rivals)] = True
    return {
        name: Score(attention_share(weights, keys), attention_share(uniform_attention(T), keys).item())
        for name, keys in masks.items()
    }
