"""Measure the heads of a model of `builtin:stories` where the text shows what they must attend to."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from minigpt.config.schema import DataConfig
from minigpt.interpret.scores import Score, shares
from minigpt.text.stories import BOYS, GIRLS
from minigpt.text.tokenizer import Ids, Tokenizer

LINKS = {
    "she": "the girl's name, after She",
    "he": "the boy's name, after He",
    "pronoun": "He or She, before a name",
    "copy": "how this word went on before",
}
"""The keys of each link. Its statistic is the share of attention on them, averaged over positions with such a link."""
SCORES = ("copy", "he", "not he", "she", "not she", "pronoun")
"""The statistics of links. "not he" is the attention to the other child's name, at the positions of "he"."""
RIVALS = {"he": "not he", "she": "not she"}
"""A head that finds a name attends to this name more than to the other child's name."""

WHO = dict.fromkeys((*GIRLS, "She", "her"), GIRLS) | dict.fromkeys((*BOYS, "He", "his"), BOYS)
"""For each name and pronoun, all names of girls, or all names of boys."""
WORDS = re.compile(rf"\n+|\b(?:{'|'.join(WHO)}|[KMVWZbdfgklmnprstvz][aeiou](?:[bdfgklmnprstvz][aeiou]){{2}})\b")
"""Line breaks, names, pronouns, and invented words of three syllables."""


class Link(NamedTuple):
    """A position from which a reader must look back to predict the next character.

    It is within an invented word that occurred before in the story, or before the name of the person whom the last
    pronoun in the sentence means, as before "Jakob" in `He says: "I am Jakob`.
    """

    query: int
    keys: dict[str, tuple[int, ...]]
    """By the names of SCORES: the next character in earlier occurrences of the word, or the characters of earlier
    names and of the pronoun."""


def links(text: str) -> Iterator[Link]:
    """Yield all links in a part of the stories. The part may start and end anywhere."""
    copies, names = defaultdict[str, list[int]](list), {GIRLS: list[int](), BOYS: list[int]()}
    meant, pronoun = None, (0, 0)
    for match in WORDS.finditer(text):
        word, first, who = match[0], match.start(), WHO.get(match[0])
        if word == "\n\n":
            copies.clear()
            names = {GIRLS: [], BOYS: []}
        if "\n" in word:
            meant = None
        elif who is None:
            for offset in range(len(word) - 1 if copies[word] else 0):
                yield Link(first + offset, {"copy": tuple(copy + offset + 1 for copy in copies[word])})
            copies[word].append(first)
        elif word not in who:
            meant, pronoun = who, match.span()
        else:
            spans, other = names[who], names[BOYS if who is GIRLS else GIRLS]
            if meant is who and spans and other:
                name = "she" if who is GIRLS else "he"
                keys = {name: tuple(spans), f"not {name}": tuple(other), "pronoun": tuple(range(*pronoun))}
                yield Link(first - 1, keys)
            spans += range(first, match.end())


def is_on_stories(data: DataConfig) -> bool:
    """Return whether the validation split is from `builtin:stories`."""
    return all(source.startswith("builtin:stories") for source in data.val_source or data.source)


def linked_windows(windows: Iterable[Ids], tokenizer: Tokenizer) -> Iterator[tuple[Ids, str]]:
    """Yield the windows that have links within words and links after pronouns, each with its text."""
    for window in windows:
        text = tokenizer.decode(window)
        if len(text) == len(window) and {name for link in links(text) for name in link.keys} > {"copy"}:
            yield window, text


def link_scores(weights: Tensor, text: str) -> dict[str, Score]:
    """Return the statistics of the attention weights (L, H, T, S) for a text of T characters, by the names of SCORES.

    A statistic is NaN if the text has no such link.
    """
    T = len(text)
    masks = {name: torch.zeros(T, T, dtype=torch.bool) for name in SCORES}
    for link in links(text):
        for name, keys in link.keys.items():
            masks[name][link.query, list(keys)] = True
    return shares(weights, masks)
