"""Randomness as a function: every random draw in the project is named by a key, none by a state."""

import hashlib

import numpy as np
from numpy.typing import NDArray

ROUNDS = 4


def mix_seed(*key: int | str) -> int:
    """Return a 63-bit seed for `key`, such as `(seed, "epoch", 3)`; different keys give unrelated seeds."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def shuffled(places: NDArray[np.int64], size: int, seed: int) -> NDArray[np.int64]:
    """Return the images of these places under a permutation of range(size) that the seed names.

    The permutation is never written down, so that a text of any length can be read in random order from any point
    on: a Feistel network (Luby and Rackoff 1988), applied again until the result is below `size`.
    """
    bits = max(1, ((size - 1).bit_length() + 1) // 2)
    low = np.uint64((1 << bits) - 1)

    def once(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
        left, right = x >> np.uint64(bits), x & low
        for number in range(ROUNDS):
            left, right = right, left ^ (_mixed(right, mix_seed(seed, number)) & low)
        return left << np.uint64(bits) | right

    found = once(places.astype(np.uint64))
    while (beyond := found >= size).any():
        found[beyond] = once(found[beyond])
    return found.astype(np.int64)


def _mixed(x: NDArray[np.uint64], key: int) -> NDArray[np.uint64]:
    """Return a hash of each number (the finalizer of SplitMix64, Steele et al. 2014)."""
    x = x + np.uint64(key)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
