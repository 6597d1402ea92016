"""Guesses at the next few tokens, which the model can then check all at once.

Speculative decoding (Leviathan et al. 2023) has a small model guess and a large one check. Here n-grams of the run's
text, its validation split included, guess by the very random numbers that the model's own token is drawn by (Daliri et
al. 2024). Where the two are alike the next guess counts too; where they differ the model's token stands. So guesses
save time, and change no text.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from minigpt.text.tokenizer import Ids

LONGEST = 4
ORDERS = (LONGEST, 2)
"""Numbers of tokens before a guess that it may go by: the first whose tokens stand in `ENOUGH` places of the text."""
ENOUGH = 8
MOST = 1 << 20
"""Tokens of a longer text that are looked at, its first."""


@dataclass(frozen=True)
class NGrams:
    """The n-grams of a text, each once and as a number: its last digit is its last token, so like beginnings adjoin."""

    codes: NDArray[np.int64]
    """The numbers in order, (N)."""
    before: NDArray[np.int64]
    """In how many places of the text those before the n-gram stand, and at the end the number of places, (N + 1)."""
    log_counts: NDArray[np.float64]
    """The logarithm of how often each stands in the text, (N)."""


class Draft:
    """What follows each few tokens of a text, and how often."""

    def __init__(self, text: Ids, vocab_size: int) -> None:
        """Take the token ids `text` (N,), which are read when the first guess is asked for."""
        self.text, self.vocab_size = text[:MOST], vocab_size

    @cached_property
    def ngrams(self) -> dict[int, NGrams]:
        """For each order the (order + 1)-grams of the text."""
        longest = 63 // self.vocab_size.bit_length() - 1  # an n-gram is one 64-bit number
        tokens = self.text.astype(np.int64)
        return {order: self._count(tokens, order) for order in ORDERS if order <= longest}

    def _count(self, tokens: NDArray[np.int64], order: int) -> NGrams:
        places = max(0, len(tokens) - order)
        codes: NDArray[np.int64] = np.zeros(places, dtype=np.int64)
        for place in range(order + 1):
            codes = codes * self.vocab_size + tokens[place : place + places]
        codes.sort()
        first = np.flatnonzero(np.diff(codes, prepend=-1))
        before = np.append(first, places)
        return NGrams(codes[first], before, np.log(np.diff(before)))

    def guess(self, recent: list[int], gumbel: NDArray[np.float64], temperature: float) -> list[int]:
        """Return how `recent` may go on: as `sample.next_token` draws, were each token as likely as it is in the text.

        `gumbel` (T, V) are the numbers of T tokens. Fewer are guessed where the text has none.
        """
        tokens = list(recent)
        for noise in gumbel * min(temperature, 1e300):  # beyond which it would be infinite
            token = self._next(tokens, noise)
            if token is None:
                break
            tokens.append(token)
        return tokens[len(recent) :]

    def _next(self, tokens: list[int], noise: NDArray[np.float64]) -> int | None:
        for order, ngrams in self.ngrams.items():
            if order > len(tokens):
                continue
            context = 0
            for token in tokens[-order:]:
                context = context * self.vocab_size + token
            first = ngrams.codes.searchsorted(context * self.vocab_size)
            end = ngrams.codes.searchsorted((context + 1) * self.vocab_size)
            if ngrams.before[end] - ngrams.before[first] >= ENOUGH:
                last, scores = ngrams.codes[first:end] % self.vocab_size, ngrams.log_counts[first:end]
                return int(last[(scores + noise[last]).argmax()])
        return None
