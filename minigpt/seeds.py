"""Derive seeds from keys such as `(seed, "epoch", 3)`, so a resumed run needs no saved random state."""

import hashlib

import numpy as np
from numpy.typing import NDArray


def mix_seed(*key: int | str) -> int:
    """Return a 63-bit seed for `key`, such as `(seed, "epoch", 3)`. Different keys give unrelated seeds."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def permute(indices: NDArray[np.int64], size: int, seed: int) -> NDArray[np.int64]:
    """Apply a random permutation of range(size) to `indices`. The seed selects the permutation.

    The permutation needs no table, so training can read a long text in random order starting at any step. It is a
    Feistel network (https://en.wikipedia.org/wiki/Feistel_cipher) over the next power of four. Results of `size` or
    more pass through it again (https://en.wikipedia.org/wiki/Format-preserving_encryption#Cycle_walking).
    """
    half = max(1, ((size - 1).bit_length() + 1) // 2)  # bits in each half of an index
    mask = np.uint64((1 << half) - 1)
    keys = [mix_seed(seed, round_) for round_ in range(4)]

    def feistel(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
        left, right = x >> np.uint64(half), x & mask
        for key in keys:
            left, right = right, left ^ (_hash(right, key) & mask)
        return left << np.uint64(half) | right

    permuted = feistel(indices.astype(np.uint64))
    while (beyond := permuted >= size).any():
        permuted[beyond] = feistel(permuted[beyond])
    return permuted.astype(np.int64)


def _hash(x: NDArray[np.uint64], key: int) -> NDArray[np.uint64]:
    """Hash each value with the finalizer of SplitMix64 (https://prng.di.unimi.it/splitmix64.c)."""
    x = x + np.uint64(key)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
