"""Measure how much of a text is copied: the longest match of each character's surroundings in the training text."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

RUNS = (10, 20, 40)
"""Lengths of copied runs, in characters."""
ENOUGH = 2_000
"""Characters of validation text to measure."""


def match_lengths(text: str, training: str) -> list[int]:
    """Return, for each character, the length of the longest part of `text` around it that occurs in `training`.

    Matches that start later never end earlier. So each start needs one pass over `training`, and no index.
    """
    lengths: NDArray[np.int64] = np.zeros(len(text), dtype=np.int64)
    end = 0
    for start in range(len(text)):
        end, at = max(end, start), 0
        # A longer match first occurs where the shorter one does, or later.
        while end < len(text) and (at := training.find(text[start : end + 1], at)) >= 0:
            end += 1
        np.maximum(lengths[start:end], end - start, out=lengths[start:end])
    return list(lengths.tolist())


def copied_shares(texts: Sequence[Sequence[int]]) -> dict[int, float]:
    """Return the share of characters in copied runs of at least each length in `RUNS`, from their `match_lengths`."""
    lengths = np.concatenate([np.asarray(text, np.int64) for text in texts])
    return {run: int((lengths >= run).sum()) / max(1, len(lengths)) for run in RUNS}


def excerpts(validation: str, lengths: Sequence[int]) -> list[str]:
    """Return excerpts of the mean of `lengths`, spread evenly over the validation text. They do not overlap."""
    length = max(1, round(sum(lengths) / max(1, len(lengths))))
    count = max(1, min(-(-ENOUGH // length), len(validation) // length))
    starts = np.linspace(0, max(0, len(validation) - length), count).astype(int).tolist()
    return [validation[start : start + length] for start in starts]
