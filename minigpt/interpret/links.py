"""Score the heads of a model of `builtin:stories` where the text shows what they must look for."""

import torch
from torch import Tensor

from minigpt.interpret.scores import Score, attention_share, uniform_attention
from minigpt.text.stories import links

LINKS = {
    "copy": "what followed the same character of the same invented word, earlier in the story",
    "pronoun": "before a name, the earlier names of the person that the last pronoun means",
    "other person": "at the same positions, the names of the other person",
}
"""The keys of each link. Its score is the share of attention on them, averaged over the positions with such a link."""


def has_links(text: str) -> bool:
    """Whether each link of LINKS occurs in a text."""
    return {link.kind for link in links(text)} == {"copy", "pronoun"}


def link_scores(weights: Tensor, text: str) -> dict[str, Score]:
    """Return the scores of the attention weights (L, H, T, S) for a text of T characters, by the names of LINKS."""
    T = len(text)
    masks = {name: torch.zeros(T, T, dtype=torch.bool) for name in LINKS}
    for link in links(text):
        masks[link.kind][link.query, list(link.keys)] = True
        masks["other person"][link.query, list(link.rivals)] = True
    return {
        name: Score(attention_share(weights.double(), keys), attention_share(uniform_attention(T), keys).item())
        for name, keys in masks.items()
    }
