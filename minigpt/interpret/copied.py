"""Measure how much of a text is copied: the longest match of each character's surroundings in the training text."""

import sys
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

RUNS = (10, 20, 40)
"""Lengths of runs of copied characters."""
ENOUGH = 2_000
"""Characters of validation text to measure."""
MOST = 20_000
"""The most characters of several texts to search for at the same time."""
BLOCK = 1 << 18
"""Positions of the training text to search at the same time. Their arrays should fit into the cache of a CPU core."""


def match_lengths(texts: Sequence[str], training: str) -> list[list[int]]:
    """Return, for each character of each text, the length of the longest part around it that occurs in `training`."""
    if len(texts) > 1 and sum(map(len, texts)) > MOST:
        half = len(texts) // 2
        return match_lengths(texts[:half], training) + match_lengths(texts[half:], training)
    sizes = [len(text) for text in texts]
    alphabet, symbols = np.unique(_code_points("".join(texts)), return_inverse=True)
    numbers = np.full(sys.maxunicode + 1, len(alphabet), np.int32)  # the last number is no character of the texts
    numbers[alphabet] = np.arange(len(alphabet))
    other = np.append(numbers[_code_points(training)], np.int32(len(alphabet)))  # ends each match
    ends, longest = np.repeat(np.cumsum(sizes), sizes), np.zeros(len(symbols), np.int64)
    for first in range(0, len(training), BLOCK):
        positions = np.arange(first, min(first + BLOCK, len(training)))
        np.maximum(longest, _longest_matches(symbols, ends, other, positions, len(alphabet) + 1), out=longest)
    lengths = np.zeros(len(symbols), np.int64)
    for start, length in enumerate(longest.tolist()):
        np.maximum(lengths[start : start + length], length, out=lengths[start : start + length])
    return [part.tolist() for part in np.split(lengths, np.cumsum(sizes)[:-1])]


def _code_points(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)


def _longest_matches(
    symbols: NDArray[np.int64],
    ends: NDArray[np.int64],
    other: NDArray[np.int32],
    positions: NDArray[np.int64],
    size: int,
) -> NDArray[np.int64]:
    """Return the length of the longest match between each start in `symbols` and one of `positions` in `other`.

    Follow all starts and all positions together through a trie of the texts, one symbol at a time. A position drops
    out where the trie ends. A start drops out where no position is left in its node.

    Args:
        symbols: Texts as numbers below `size`, (N,).
        ends: The end of the text of each symbol, (N,).
        other: Another text as numbers below `size`, whose last number is not in `symbols`.
        positions: Positions in `other`.
    """
    longest, starts, depth = np.zeros(len(symbols), np.int64), np.arange(len(symbols)), 0
    nodes, at, count = np.zeros_like(starts), np.zeros_like(positions), 1  # the node of each start and position
    while len(starts):
        edges, nodes = np.unique(nodes * size + symbols[starts + depth], return_inverse=True)
        children = np.full(count * size, -1)
        children[edges] = np.arange(count := len(edges))
        at = children[at * size + other[positions + depth]]
        is_in = at >= 0
        at, positions, depth = at[is_in], positions[is_in], depth + 1
        is_found = np.zeros(count, bool)
        is_found[at] = True
        longest[starts[is_found[nodes]]] = depth
        is_in = is_found[nodes] & (starts + depth < ends[starts])
        starts, nodes = starts[is_in], nodes[is_in]
    return longest


def copied_shares(texts: Sequence[Sequence[int]]) -> dict[int, float]:
    """Return the share of characters in copied runs of at least each length in `RUNS`, from the `match_lengths`."""
    lengths = np.concatenate([np.asarray(text, np.int64) for text in texts])
    return {run: int((lengths >= run).sum()) / max(1, len(lengths)) for run in RUNS}


def excerpts(validation: str, lengths: Sequence[int]) -> list[str]:
    """Return excerpts as long as the mean of `lengths`, spread evenly over the validation text, without overlap."""
    length = max(1, round(sum(lengths) / max(1, len(lengths))))
    count = max(1, min(-(-ENOUGH // length), len(validation) // length))
    starts = np.linspace(0, max(0, len(validation) - length), count).astype(int).tolist()
    return [validation[start : start + length] for start in starts]
