"""Simple methods that put a loss into perspective."""

import math
import random
from collections import Counter

import numpy as np
import pytest

from minigpt.interpret.simple import LONGEST, ngram_losses, xz_loss
from minigpt.text.tokenizer import make_tokenizer


def slow_losses(train: list[int], validation: list[int], vocab_size: int) -> list[float]:
    """Witten-Bell interpolation, token by token."""
    grams = [Counter(tuple(train[i : i + n]) for i in range(len(train) - n + 1)) for n in range(LONGEST + 1)]
    everything, sums = train[-LONGEST:] + validation, [0.0] * LONGEST
    for at in range(len(everything) - len(validation) + 1, len(everything)):
        probability = 1 / vocab_size
        for n in range(1, LONGEST + 1):
            gram = tuple(everything[at - n + 1 : at + 1])
            following = {g: k for g, k in grams[n].items() if g[:-1] == gram[:-1]}
            if following:
                total, kinds = sum(following.values()), len(following)
                probability = (grams[n][gram] + kinds * probability) / (total + kinds)
            sums[n - 1] -= math.log(probability)
    return [total / (len(validation) - 1) for total in sums]


@pytest.mark.parametrize("seed", range(5))
def test_ngrams_agree_with_a_slow_count(seed: int) -> None:
    draw = random.Random(seed)
    train, validation = ([draw.choice([0, 0, 1, 2]) for _ in range(n)] for n in (60, 20))
    found = ngram_losses(np.array(train, np.uint16), np.array(validation, np.uint16), 5)
    assert found == pytest.approx(slow_losses(train, validation, 5))


def test_a_repeated_text_is_easy_for_all_but_frequencies() -> None:
    text = "the cat sat on the mat. " * 200
    tokenizer = make_tokenizer("char", {*text})
    ids = tokenizer.encode(text)
    losses = ngram_losses(ids[:4000], ids[4000:], tokenizer.vocab_size)
    assert losses[0] > 2
    assert losses[-1] < 0.1
    assert xz_loss(ids[:4000], ids[4000:], tokenizer) < 0.2
