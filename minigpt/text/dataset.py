"""Token datasets: a text encoded once into a memory-mapped file and split for training and validation."""

import hashlib
import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from minigpt.config.schema import DataConfig
from minigpt.errors import TextError, TextMismatchError
from minigpt.paths import cache_folder
from minigpt.text.cache import cached_file
from minigpt.text.corpus import Corpus, Scan, scan
from minigpt.text.sources import open_corpus
from minigpt.text.tokenizer import Ids, Tokenizer, Unknown, make_tokenizer

CRC_BYTES = 4


@dataclass(frozen=True)
class TokenDataset:
    """A tokenized text, split into training and validation tokens that do not overlap."""

    train: Ids
    validation: Ids
    tokenizer: Tokenizer
    fingerprint: str
    """The SHA-256 of the text. If there is a validation text, "+" and its SHA-256 follow."""
    characters: int
    notices: tuple[str, ...] = ()
    encoded: tuple[Ids, ...] = ()
    """The tokens of the text, and of the validation text if there is one."""

    def resplit(self, val_fraction: float) -> "TokenDataset":
        """Return the dataset with a different validation fraction. A separate validation text does not change."""
        train, validation = split(self.encoded, val_fraction)
        return replace(self, train=train, validation=validation)

    @property
    def characters_per_token(self) -> float:
        """Average number of characters per token: 1 for the char tokenizer, 1/4 to 1 for the byte tokenizer."""
        return self.characters / (len(self.train) + len(self.validation))


def load_dataset(config: DataConfig) -> TokenDataset:
    """Read and encode the text of a new run. If its tokens are cached, map them instead."""
    scans = _scan(config)
    files = [{os.path.realpath(part.path) for part in found.corpus.parts} for found in scans]
    if len(scans) == 2 and (files[0] & files[1] or scans[0].fingerprint == scans[1].fingerprint):
        raise TextError("data.val_source shares text with data.source, so its loss says nothing about new text")
    tokenizer = make_tokenizer(config.tokenizer, (char for found in scans for char in found.counts))
    notices = [notice for found in scans for notice in found.corpus.notices]
    if returns := sum(found.counts.get("\r", 0) for found in scans):
        notices.append(f"the text has {returns:,} carriage returns (Windows line endings); each counts as a character")
    encoded = [encode_cached(found, tokenizer) for found in scans]
    return replace(_make_dataset(config, encoded, tokenizer, _join(scans)), notices=tuple(notices))


def reload_dataset(config: DataConfig, fingerprint: str, tokenizer: Tokenizer) -> TokenDataset:
    """Load the dataset of an earlier run. Text from standard input is loaded from the cache.

    Args:
        config: The data settings. The source may have changed.
        fingerprint: The fingerprint of the run's dataset.
        tokenizer: The run's tokenizer.

    Raises:
        TextMismatchError: The text is missing or has changed.
    """
    is_from_stdin = "-" in (*config.source, *config.val_source)
    if is_from_stdin:
        cached = [open_cached(part, tokenizer) for part in fingerprint.split("+")]
        encoded = [tokens for tokens in cached if tokens is not None]
        if len(encoded) == len(cached):
            return _make_dataset(config, encoded, tokenizer, fingerprint)
    try:
        scans = _scan(config)
    except TextError as error:
        origin = "it came from standard input and is no longer in the cache; " if is_from_stdin else ""
        raise TextMismatchError(f"the text of this run is not available: {origin}{error}") from error
    if _join(scans) != fingerprint:
        names = " or ".join(found.corpus.name for found in scans)
        raise TextMismatchError(f"{names} is not the text that this run was trained on")
    return _make_dataset(config, [encode_cached(found, tokenizer) for found in scans], tokenizer, fingerprint)


def _scan(config: DataConfig) -> list[Scan]:
    """Scan the text, and the validation text if there is one."""
    sources = [config.source, config.val_source] if config.val_source else [config.source]
    return [scan(open_corpus(source, config.encoding)) for source in sources]


def _join(scans: Sequence[Scan]) -> str:
    return "+".join(found.fingerprint for found in scans)


def _make_dataset(config: DataConfig, encoded: list[Ids], tokenizer: Tokenizer, fingerprint: str) -> TokenDataset:
    train, validation = split(encoded, config.val_fraction)
    characters = sum(map(tokenizer.characters, encoded))
    return TokenDataset(train, validation, tokenizer, fingerprint, characters, encoded=tuple(encoded))


def split(encoded: Sequence[Ids], val_fraction: float) -> tuple[Ids, Ids]:
    """Return training and validation tokens, from two texts or from the start and end of one."""
    if len(encoded) == 2:
        train, validation = encoded
    else:
        (tokens,) = encoded
        # Each part gets at least two tokens, enough for one prediction.
        size = max(2, min(int(len(tokens) * (1 - val_fraction)), len(tokens) - 2))
        train, validation = tokens[:size], tokens[size:]
    for name, tokens in (("training", train), ("validation", validation)):
        if len(tokens) < 2:
            raise TextError(f"the text is too short: {name} needs at least 2 tokens, got {len(tokens)}")
    return train, validation


# --- encoding ------------------------------------------------------------------------------------------


def encode(corpus: Corpus, tokenizer: Tokenizer, unknown: Unknown = "error") -> Ids:
    """Encode a corpus in memory. Return its tokens (N,)."""
    return np.concatenate([tokenizer.encode(block, unknown) for block in corpus.blocks()])


def encode_cached(scanned: Scan, tokenizer: Tokenizer) -> Ids:
    """Return the tokens of a corpus (N,) as a read-only memory map of a file in the cache. Write the file if needed."""
    tokens = open_cached(scanned.fingerprint, tokenizer)
    if tokens is None:
        digest, crc32 = hashlib.sha256(), 0
        with cached_file(_cache_path(scanned.fingerprint, tokenizer)) as file:
            for block in scanned.corpus.blocks():
                ids = tokenizer.encode(block)
                file.write(ids.data)
                crc32 = zlib.crc32(ids.data, crc32)
                digest.update(block.encode())
            file.write(crc32.to_bytes(CRC_BYTES, "little"))
            if digest.hexdigest() != scanned.fingerprint:
                raise TextError(f"{scanned.corpus.name} changed while minigpt was reading it")
        tokens = open_cached(scanned.fingerprint, tokenizer)
        assert tokens is not None, "the file was just written"
    return tokens


def open_cached(fingerprint: str, tokenizer: Tokenizer) -> Ids | None:
    """Return the tokens of a text (N,) as a read-only memory map, or None if they are not cached or are damaged."""
    try:
        content = np.memmap(_cache_path(fingerprint, tokenizer), dtype=np.uint8, mode="r")
    except (OSError, ValueError):  # an empty file cannot be mapped
        return None
    tokens, crc32 = content[:-CRC_BYTES], content[-CRC_BYTES:]
    if zlib.crc32(tokens.data) != int.from_bytes(crc32.tobytes(), "little"):
        return None
    # Return a plain array: slicing a memmap object takes as long as building a small batch.
    return np.asarray(tokens).view(tokenizer.dtype)


def _cache_path(fingerprint: str, tokenizer: Tokenizer) -> Path:
    """Return the path of an encoded text. The file holds its tokens, then their CRC-32."""
    key = hashlib.sha256(f"{fingerprint} {tokenizer.to_json()}".encode()).hexdigest()[:32]
    return cache_folder() / "tokens" / key
