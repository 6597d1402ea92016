"""Randomness as a function: every random draw in the project is named by a key, none by a state."""

import hashlib


def mix_seed(*key: int | str) -> int:
    """Return a 63-bit seed for `key`, such as `(seed, "batch", step)`; different keys give unrelated seeds."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
