"""What a head looks at, as numbers, each beside what a head that looks everywhere alike would get.

Only the queries from the second on count: the first character has nothing to choose from.
"""

import math
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from minigpt.model.gpt import causal_mask

PATTERNS = {
    "previous": "the character before",
    "self": "the character itself",
    "first": "the first character of the text, where heads often rest (Xiao et al. 2023, attention sinks)",
    "same": "earlier places of the same character",
    "induction": "what followed the same character earlier (Olsson et al. 2022)",
    "word": "the start of the word that the character is in",
    "line": "the start of the line that the character is in",
    "next": "the character after: exactly 0 in a causal model",
}
"""Keys that a head may look at: share of the attention that goes there, over the queries that have such keys."""
MEASURES = {
    "distance": "how many characters back, in the mean",
    "distance without first": "the same without what goes to the first character",
    "entropy": "how spread the attention is, in nats",
    "top": "share of the attention that the strongest key gets",
}
DISTINCT = 0.15
"""How far above the uniform baseline the largest pattern of a head lies at least, to give the head its name."""
MOST_COMPARED = 1 << 26
"""Pairs of heads times queries times keys that `divergence` compares, about: of a longer text every n-th query."""
BROAD = 0.9
"""Share of the largest possible entropy from which a head without a pattern is called broad."""


@dataclass(frozen=True)
class Score:
    """One number for each head, (L, H); what uniform attention gets; nan where the text has no such place."""

    values: Tensor
    uniform: float

    @property
    def lift(self) -> Tensor:
        """How many times the baseline, (L, H)."""
        return self.values / self.uniform if self.uniform else torch.full_like(self.values, math.nan)


def head_scores(weights: Tensor, characters: Sequence[str]) -> dict[str, Score]:
    """Return all scores of attention weights (L, H, T, S) over a text of T tokens, by the names above."""
    T = len(characters)
    weights = weights.double()
    both = torch.cat((weights.flatten(0, 1), _uniform(T)[None]))  # (L H + 1, T, S)
    found = {name: mass(both, keys) for name, keys in patterns(characters).items()} | measures(both)
    return {name: Score(scores[:-1].view(weights.shape[:2]), scores[-1].item()) for name, scores in found.items()}


def _uniform(T: int) -> Tensor:
    """Return the weights of a query that looks at all it may see alike, (T, S)."""
    mask = causal_mask(T, T, torch.device("cpu")).double()
    return mask / mask.sum(-1, keepdim=True)


def span_probe(weights: Tensor, ids: Sequence[int], asking: Sequence[int], asked: Sequence[int]) -> Score:
    """Return the share of weights (L, H, T, S) that tokens of one passage give to those of another before it.

    All places in `ids` where `asking` stands are queries, and their keys all where `asked` stands that end before; for
    a pronoun and a noun, say, or two mentions of one name. The values are nan where there are none.
    """
    T = len(ids)
    keys = torch.zeros(T, T, dtype=torch.bool)
    for query in _places(ids, asking):
        for key in _places(ids, asked):
            if key.stop <= query.start:
                keys[query, key] = True
    return Score(mass(weights.double(), keys), mass(_uniform(T), keys).item())


def _places(ids: Sequence[int], part: Sequence[int]) -> list[slice]:
    """Return where `part` stands in `ids`."""
    slices = (slice(start, start + len(part)) for start in range(len(ids) - len(part) + 1))
    return [place for place in slices if list(ids[place]) == list(part)]


def mass(weights: Tensor, keys: Tensor) -> Tensor:
    """Return the share of `weights` (..., T, S) on the marked `keys` (T, S), mean over the queries that have one."""
    asked = keys.any(-1)  # (T,)
    asked[:1] = False
    return (weights * keys).sum(-1)[..., asked].mean(-1)


def patterns(characters: Sequence[str]) -> dict[str, Tensor]:
    """Return which keys each pattern means for each query, (T, S)."""
    T = len(characters)
    at = torch.arange(T)
    known = {character: number for number, character in enumerate(dict.fromkeys(characters))}
    kind = torch.tensor([known[character] for character in characters], dtype=torch.long)
    past = at[:, None] > at  # (T, S)
    same = (kind[:, None] == kind) & past
    after_same = torch.zeros_like(same)
    after_same[:, 1:] = same[:, :-1]
    words = [in_word(character) for character in characters]
    lines = [character not in "\n\r" for character in characters]
    return {
        "previous": at[:, None] - 1 == at,
        "self": at[:, None] == at,
        "first": (at == 0).expand(T, T),
        "same": same,
        "induction": after_same & past,
        "word": _starts(words),
        "line": _starts(lines),
        "next": at[:, None] + 1 == at,
    }


def in_word(character: str) -> bool:
    """Return whether a character is part of a word, as marks on its letters are. A byte above 127 nearly always is."""
    if len(character) > 1:
        return True
    return character.isalnum() or character in "'’_" or unicodedata.category(character).startswith("M")


def _starts(inside: Sequence[bool]) -> Tensor:
    """Return, for each place in a stretch but its first, the place where that stretch starts, as a mask (T, S)."""
    starts = torch.zeros(len(inside), len(inside), dtype=torch.bool)
    start = 0
    for place, is_inside in enumerate(inside):
        if not is_inside:
            start = place + 1
        elif place > start:
            starts[place, start] = True
    return starts


def measures(weights: Tensor) -> dict[str, Tensor]:
    """Return distance with and without the first character, entropy, and the strongest weight, of (N, T, S): (N,)."""
    T = weights.size(-1)
    back = (torch.arange(T)[:, None] - torch.arange(T)).double()  # (T, S)
    later = weights[:, 1:]
    rest = weights[:, 2:, 1:]
    left = rest.sum(-1)  # (N, T - 2)
    distances = (rest * back[2:, 1:]).sum(-1) / left.clamp_min(1e-12)
    kept = left > 1e-6
    return {
        "distance": (later * back[1:]).sum(-1).mean(-1),
        "distance without first": (distances * kept).sum(-1) / kept.sum(-1),
        "entropy": torch.special.entr(later).sum(-1).mean(-1),
        "top": later.amax(-1).mean(-1) if T > 1 else later.sum((-1, -2)) * math.nan,
    }


def kinds(scores: Mapping[str, Score]) -> list[list[str]]:
    """Return a name for each head, (L, H): the pattern furthest above its baseline, or `broad`, or `mixed`."""
    names = [name for name in PATTERNS if not math.isnan(scores[name].uniform)]
    entropy = scores["entropy"]
    layers, heads = entropy.values.shape
    above = torch.stack([scores[name].values - scores[name].uniform for name in names]) if names else None

    def kind(layer: int, head: int) -> str:
        if above is not None and above[:, layer, head].max() >= DISTINCT:
            return names[int(above[:, layer, head].argmax())]
        return "broad" if entropy.values[layer, head] >= BROAD * entropy.uniform else "mixed"

    return [[kind(layer, head) for head in range(heads)] for layer in range(layers)]


def divergence(weights: Tensor) -> Tensor:
    """Return how differently two heads look, (L H, L H): Jensen-Shannon divergence over ln 2, mean over queries.

    Of many heads over a long text, every few queries alone are taken.
    """
    few = math.ceil(weights.numel() * weights.size(0) * weights.size(1) / MOST_COMPARED)
    rows = weights[:, :, 1::few].double().flatten(0, 1)  # (L H, queries, S)
    spread = torch.special.entr(rows).sum(-1)  # (L H, queries)
    mixed = torch.stack([torch.special.entr((rows + row) / 2).sum(-1) for row in rows])  # (L H, L H, queries)
    apart: Tensor = (mixed - (spread[:, None] + spread) / 2) / math.log(2)  # (L H, L H, queries)
    return apart.mean(-1).clamp(0, 1)
