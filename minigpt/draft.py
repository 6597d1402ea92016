"""Guesses at the next few tokens, which the model can then check all at once.

Speculative decoding (Leviathan et al. 2023) has a small model guess and a large one check. Here n-grams of the training
text guess, and by the very number in [0, 1) that the model's own token is drawn by. Where the two are the same the next
guess counts too; where they differ the model's token stands. So guesses save time, and change no text.
"""

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from minigpt.tokenizer import Ids

LONGEST = 4
ORDERS = (LONGEST, 2)
"""Numbers of tokens before a guess that it may go by: the first whose tokens stand in `ENOUGH` places of the text."""
ENOUGH = 8
MOST = 1 << 20
"""Tokens of a longer text that are looked at, its first."""


class Draft:
    """The n-grams of a text, as numbers in sorted arrays: those that begin alike stand together, by last token."""

    def __init__(self, text: Ids, vocab_size: int) -> None:
        """Take the token ids `text` (N,), which are read when the first guess is asked for."""
        self.text, self.vocab_size = text[:MOST], vocab_size

    @cached_property
    def ngrams(self) -> dict[int, NDArray[np.int64]]:
        """For each order all (order + 1)-grams of the text, sorted: a number each, its last token the last digit."""
        longest = 63 // self.vocab_size.bit_length() - 1  # an n-gram is one 64-bit number
        tokens = self.text.astype(np.int64)
        return {order: self._sorted(tokens, order) for order in ORDERS if order <= longest}

    def _sorted(self, tokens: NDArray[np.int64], order: int) -> NDArray[np.int64]:
        count = max(0, len(tokens) - order)
        codes: NDArray[np.int64] = np.zeros(count, dtype=np.int64)
        for place in range(order + 1):
            codes = codes * self.vocab_size + tokens[place : place + count]
        codes.sort()
        return codes

    def guess(self, recent: list[int], numbers: list[float]) -> list[int]:
        """Return how `recent` may go on: a token for each number in [0, 1), or fewer where the text has none."""
        tokens = list(recent)
        for number in numbers:
            token = self._next(tokens, number)
            if token is None:
                break
            tokens.append(token)
        return tokens[len(recent) :]

    def _next(self, tokens: list[int], number: float) -> int | None:
        for order, ngrams in self.ngrams.items():
            if order > len(tokens):
                continue
            context = 0
            for token in tokens[-order:]:
                context = context * self.vocab_size + token
            first = ngrams.searchsorted(context * self.vocab_size)
            end = ngrams.searchsorted((context + 1) * self.vocab_size)
            if end - first >= ENOUGH:  # as many of them end in a token as it is likely, and in the tokens' order
                return int(ngrams[first + int(number * (end - first))] % self.vocab_size)
        return None
