"""The losses of simple methods on a validation text, as baselines."""

import lzma
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minigpt.config.schema import ADAMW_RATE, NORMUON_RATE, RECURRENT, RunConfig
from minigpt.text.dataset import TokenDataset
from minigpt.text.tokenizer import Ids, Tokenizer

MOST_TOKENS = 2_000_000
"""The methods learn from the last tokens, at most this number. A longer validation text is not evaluated."""
LONGEST = 5
"""Tokens of the longest n-gram."""
Counts = NDArray[Any]
MIX = np.uint64(0x9E3779B97F4A7C15)
"""An odd number whose multiples spread over 64 bits, to hash n-grams."""


def simple_losses(train: Ids, validation: Ids, tokenizer: Tokenizer) -> dict[str, float]:
    """Return the loss of each method by name, in nats per token. Empty if the validation text is too long."""
    if len(validation) > MOST_TOKENS:
        return {}
    ngrams, unit = ngram_losses(train, validation, tokenizer.vocab_size), tokenizer.unit
    return {
        f"equal guesses among {tokenizer.vocab_size}": math.log(tokenizer.vocab_size),
        f"frequency of each {unit}": ngrams[0],
        f"pairs of {unit}s": ngrams[1],
        f"{LONGEST}-grams of {unit}s": ngrams[-1],
        "xz, which also learns from this text": xz_loss(train, validation, tokenizer),
    }


def ngram_losses(train: Ids, validation: Ids, vocab_size: int) -> list[float]:
    """Return the losses of n-gram models of 1 to `LONGEST` tokens, in nats per token.

    They count n-grams in `train`, and predict every token of `validation` but the first, as `evaluate` does. Each model
    mixes with the next shorter one, whose weight grows with the number of different tokens that followed the context
    (Witten and Bell 1991, https://doi.org/10.1109/18.87000). The unigram model mixes with the uniform distribution.
    """
    tokens: Counts = np.asarray(train[-MOST_TOKENS:], np.uint64)
    scored: Counts = np.concatenate((tokens[-LONGEST:], np.asarray(validation, np.uint64)))
    first = len(scored) - len(validation) + 1
    # The bits of a key that hold the last token. The others hold a hash of the tokens before it.
    last = np.uint64((1 << (vocab_size - 1).bit_length()) - 1)
    contexts: Counts = np.zeros_like(tokens)
    scored_contexts: Counts = np.zeros_like(scored)
    probability: Counts = np.full(len(validation) - 1, 1 / vocab_size)
    losses = []
    for _ in range(LONGEST):
        grams, scored_grams = contexts | tokens, scored_contexts | scored
        kinds, counts = np.unique(grams, return_counts=True)  # n-grams with the same context are neighbors
        before, starts, kinds_after = np.unique(kinds & ~last, return_index=True, return_counts=True)
        seen = _lookup(kinds, counts, scored_grams[first:])
        followed = _lookup(before, np.add.reduceat(counts, starts), scored_contexts[first:])
        different = _lookup(before, kinds_after, scored_contexts[first:])
        mixed = (seen + different * probability) / np.maximum(1, followed + different)
        probability = np.where(followed > 0, mixed, probability)
        losses.append(float(0.0 - np.log(probability).mean()))  # not -0.0
        contexts, tokens = _hash(grams[:-1]) & ~last, tokens[1:]
        scored_contexts[1:] = _hash(scored_grams[:-1]) & ~last
    return losses


def _hash(keys: Counts) -> Counts:
    return (keys + np.uint64(1)) * MIX


def _lookup(keys: Counts, counts: Counts, wanted: Counts) -> Counts:
    """Return the count of each wanted key, 0 for keys that are not in the sorted `keys`."""
    if not len(keys):  # the text is shorter than the n-gram
        return np.zeros_like(wanted)
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[at] == wanted, counts[at], 0)


def xz_loss(train: Ids, validation: Ids, tokenizer: Tokenizer) -> float:
    """Return by how much the validation text lengthens the compressed training text, in nats per token.

    Unlike a model, `xz` also learns from the validation text as it goes.
    """
    before, text = (tokenizer.decode(ids).encode() for ids in (train[-MOST_TOKENS:], validation))
    more = len(lzma.compress(before + text)) - len(lzma.compress(before))
    return 8 * math.log(2) * more / len(validation)


def explain_loss(loss: float, tokenizer: Tokenizer) -> str:
    """Compare a loss, in nats per token, with the loss of a uniform guess."""
    size, unit = tokenizer.vocab_size, tokenizer.unit
    guess = f"Guessing equally among all {size} {unit}s would give {math.log(size):.2f}"
    among = f"{math.exp(min(loss, 700)):.3g} ({loss / math.log(2):.2f} bits per {unit})"  # exp overflows beyond 709
    return f"{guess}; a loss of {loss:.2f} is like guessing among {among}."


def compare_loss(loss: float, data: TokenDataset, config: RunConfig) -> str:
    """Return the losses of tables of n-grams on the validation text, as one line. "" if the text is too long.

    If the `loss` of a model trained with `config` is higher than that of pairs, say what to do.
    """
    if len(data.validation) > MOST_TOKENS:
        return ""
    losses = ngram_losses(data.train, data.validation, data.tokenizer.vocab_size)
    pairs, longest = losses[1], losses[-1]
    usual = ADAMW_RATE if config.optim.name == "adamw" else RECURRENT.get(config.model.family, NORMUON_RATE)
    rate = "lower" if config.optim.lr > 4 * usual else "higher" if config.optim.lr < usual / 4 else ""
    what = f"with a {rate} optim.lr, such as {usual}" if rate else "for more steps"
    worse = f" The model predicts worse than pairs: train it {what}."
    counting = f"counting pairs would give a loss of {pairs:.2f}, and counting 5-grams {longest:.2f}."
    return f"On the validation text, {counting}{worse if loss > pairs else ''}"
