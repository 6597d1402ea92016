"""Score the heads of a model of `builtin:stories` where the text shows what they must look for."""

import torch
from torch import Tensor

from minigpt.interpret.scores import Score, attention_share, uniform_attention
from minigpt.text.stories import links

LINKS = {
    "copy": "what followed the same character of the same invented word, earlier in the story",
    "he": "before a name to which He leads, the earlier names of the boy",
    "not he": "at the same positions, the names of the girl",
    "she": "before a name to which She leads, the earlier names of the girl",
    "not she": "at the same positions, the names of the boy",
}
"""The keys of each link. Its score is the share of attention on them, averaged over the positions with such a link."""


def has_links(text: str) -> bool:
    """Whether a text has links of an invented word and of a pronoun."""
    return {link.kind for link in links(text)} > {"copy"}


def link_scores(weights: Tensor, text: str) -> dict[str, Score]:
    """Return the scores of the attention weights (L, H, T, S) for a text of T characters, by the names of LINKS.

    A score is NaN if the text has no such link.
    """
    T, weights = len(text), weights.double()
    masks = {name: torch.zeros(T, T, dtype=torch.bool) for name in LINKS}
    for link in links(text):
        masks[link.kind][link.query, list(link.keys)] = True
        if link.rivals:
            masks[f"not {link.kind}"][link.query, list(link.rivals)] = True
    return {
        name: Score(attention_share(weights, keys), attention_share(uniform_attention(T), keys).item())
        for name, keys in masks.items()
    }
