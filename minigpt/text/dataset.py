"""Token datasets: a text encoded once into a memory-mapped file and split for training and validation."""

import hashlib
import os
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

import numpy as np

from minigpt.config.schema import DataConfig
from minigpt.errors import TextError, TextMismatchError, UnknownCharacterError, escape
from minigpt.paths import cache_folder
from minigpt.text.cache import cached_file
from minigpt.text.corpus import BLOCK, Corpus, Fingerprint, Scan, scan
from minigpt.text.sources import last_change, open_corpus
from minigpt.text.tokenizer import Ids, Tokenizer, Unknown, make_tokenizer

CRC_BYTES = 4
SHOWN = 8
"""Maximum number of characters outside the vocabulary that a message names."""


@dataclass(frozen=True)
class TokenDataset:
    """A tokenized text, split into training and validation tokens that do not overlap."""

    train: Ids
    validation: Ids
    tokenizer: Tokenizer
    fingerprint: str
    """The `Fingerprint` of the text. If there is a validation text, "+" and its fingerprint follow."""
    characters: int
    notices: tuple[str, ...] = ()
    encoded: tuple[Ids, ...] = ()
    """The tokens of the text, and of the validation text if there is one."""
    characters_read: int = 0
    """Number of characters of all texts, with those that were skipped. 0 if unknown."""

    def resplit(self, val_fraction: float) -> "TokenDataset":
        """Return the dataset with a different validation fraction. A separate validation text does not change."""
        train, validation = split(self.encoded, val_fraction)
        return replace(self, train=train, validation=validation)

    @property
    def size(self) -> int:
        """Number of tokens of the text, without a separate validation text."""
        return len(self.encoded[0])

    @property
    def characters_per_token(self) -> float:
        """Average number of characters per token."""
        return self.characters / (len(self.train) + len(self.validation))


def load_dataset(config: DataConfig, tokenizer: Tokenizer | None = None) -> TokenDataset:
    """Read and encode the text of a new run. If its tokens are cached, map them instead of encoding.

    Raise UnknownCharacterError if the `tokenizer` of an earlier run lacks characters, unless `config` skips them.
    """
    scans = _scan(config)
    files = [{os.path.realpath(part.path) for part in text.corpus.parts} for text in scans]
    if len(scans) == 2 and (files[0] & files[1] or scans[0].fingerprint == scans[1].fingerprint):
        raise TextError("data.val_source shares text with data.source, so its loss says nothing about new text")
    tokenizer = tokenizer or make_tokenizer(config.tokenizer, (char for text in scans for char in text.counts))
    notices = [notice for text in scans for notice in text.corpus.notices]
    data = from_scans(config, scans, tokenizer)
    return replace(data, notices=(*notices, *data.notices))


def reload_dataset(
    config: DataConfig, fingerprint: str, tokenizer: Tokenizer, characters: int = 0, *, is_named: bool = False
) -> TokenDataset:
    """Load the dataset of an earlier run: the cached tokens of its text, or else the text from its source.

    The settings may come from a stranger, so no tokens are cached before the text has the right fingerprint. A
    named download is fetched earlier, and checked by its own hash.

    Args:
        config: The data settings. The source may have changed.
        fingerprint: The fingerprint that the text must have.
        tokenizer: The run's tokenizer.
        characters: `characters_read` of the run's dataset. Unless 0 or `is_named`, reading stops soon after that many.
        is_named: Whether the user has just named the source, so that its text must be read.

    Raises:
        TextMismatchError: The text must be read, and its source is missing or has a different text.
    """
    parts = fingerprint.split("+", bool(config.val_source))
    cached = [tokens for part in parts if (tokens := open_cached(part, tokenizer)) is not None]
    if len(cached) == len(parts) and not is_named:
        data = _make_dataset(config, cached, tokenizer, fingerprint, characters)
        cached_at = os.path.getmtime(_cache_path(parts[0], tokenizer))
        changes = {source: last_change(source) for source in (*config.source, *config.val_source)}
        problems = [
            f"{escape(source)} {'is missing' if change is None else 'may have changed since it was cached'}"
            for source, change in changes.items()
            if change is None or change > cached_at
        ]
        return replace(data, notices=tuple(f"{problem}: using the cached text" for problem in problems))
    try:
        scans = _scan(config, None if is_named else characters or None)
    except TextError as error:
        raise TextMismatchError(f"the text of this run is not available: {error}") from error
    if _join(scans) != fingerprint:
        names = " or ".join(text.corpus.name for text in scans)
        files = sum(len(text.corpus.parts) for text in scans)
        why = f" (one of {files} files was added, removed or changed)" if files > len(scans) else ""
        raise TextMismatchError(f"{names} is not the text that this run was trained on{why}")
    return from_scans(config, scans, tokenizer)


def _scan(config: DataConfig, most: int | None = None) -> list[Scan]:
    """Scan the text, and the validation text if there is one. Each scan stops soon after `most` characters."""
    sources = [config.source, config.val_source] if config.val_source else [config.source]
    return [scan(open_corpus(source, config.encoding), most) for source in sources]


def _join(scans: Sequence[Scan]) -> str:
    return "+".join(text.fingerprint for text in scans)


def from_scans(config: DataConfig, scans: Sequence[Scan], tokenizer: Tokenizer) -> TokenDataset:
    """Return the dataset of a text, and of a validation text if there is one. Raises UnknownCharacterError."""
    counts = sum((Counter(text.counts) for text in scans), Counter[str]())
    vocabulary = set(tokenizer.decode(tokenizer.encode("".join(counts), "skip")))
    unknown = Counter({char: count for char, count in counts.items() if char not in vocabulary})
    several = f"{len(unknown):,} characters" if len(unknown) > 1 else "a character"
    shown = ", ".join(repr(char) for char, _ in unknown.most_common(SHOWN)) + ", ..." * (len(unknown) > SHOWN)
    if unknown and config.unknown == "error":
        raise UnknownCharacterError(f"the text has {several} outside the vocabulary of the run: {shown}")
    # The cache does not depend on `unknown`: a text with unknown characters is encoded only if they are skipped.
    encoded = [encode_cached(text, tokenizer, config.unknown) for text in scans]
    total = counts.total()
    data = _make_dataset(config, encoded, tokenizer, _join(scans), total)
    notice = f"skipped {unknown.total():,} of {total:,} characters, which are not in the vocabulary: {shown}"
    return replace(data, notices=(notice,) if unknown else ())


def _make_dataset(
    config: DataConfig, encoded: list[Ids], tokenizer: Tokenizer, fingerprint: str, read: int
) -> TokenDataset:
    train, validation = split(encoded, config.val_fraction)
    characters = sum(map(tokenizer.characters, encoded))
    return TokenDataset(train, validation, tokenizer, fingerprint, characters, (), tuple(encoded), read)


def split(encoded: Sequence[Ids], val_fraction: float) -> tuple[Ids, Ids]:
    """Return training and validation tokens, from two texts or from the start and end of one text."""
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


# --- encoding -----------------------------------------------------------------------------------------


def encode(corpus: Corpus, tokenizer: Tokenizer, unknown: Unknown = "error") -> Ids:
    """Encode a corpus in memory. Return its tokens (N,)."""
    return np.concatenate([*tokenizer.encode_blocks(corpus.blocks(), unknown)])


def encode_cached(scanned: Scan, tokenizer: Tokenizer, unknown: Unknown = "error") -> Ids:
    """Return the tokens of a corpus (N,) as a read-only memory map of a file in the cache. Write the file if needed."""
    tokens = open_cached(scanned.fingerprint, tokenizer)
    if tokens is None:
        fingerprint, crc32 = Fingerprint(), 0
        with cached_file(_cache_path(scanned.fingerprint, tokenizer)) as file:
            for ids in tokenizer.encode_blocks(fingerprint.read(scanned.corpus), unknown):
                file.write(ids.data)
                crc32 = zlib.crc32(ids.data, crc32)
            file.write(crc32.to_bytes(CRC_BYTES, "little"))
            if fingerprint.hexdigest() != scanned.fingerprint:
                raise TextError(f"{scanned.corpus.name} changed while minigpt was reading it")
        tokens = open_cached(scanned.fingerprint, tokenizer)
    if tokens is None:
        raise TextError(
            "cannot memory-map the encoded text: it was removed from the cache, or the file system does not support it"
        )
    return tokens


def _crc32(file: BinaryIO, size: int) -> int:
    """Return the CRC-32 of the first `size` bytes of a file. A memory map would keep them in memory."""
    crc32 = 0
    file.seek(0)
    while chunk := file.read(min(size, BLOCK)):
        crc32, size = zlib.crc32(chunk, crc32), size - len(chunk)
    return crc32


def open_cached(fingerprint: str, tokenizer: Tokenizer) -> Ids | None:
    """Return the tokens of a text (N,) as a read-only memory map, or None if they are not cached or are damaged."""
    try:
        with open(_cache_path(fingerprint, tokenizer), "rb") as file:
            content = np.memmap(file, dtype=np.uint8, mode="r")
            tokens, crc32 = content[:-CRC_BYTES], content[-CRC_BYTES:]
            if _crc32(file, len(tokens)) != int.from_bytes(crc32.tobytes(), "little"):
                return None
    except (OSError, ValueError):  # an empty file cannot be mapped
        return None
    # Return a plain array: slicing a memmap object takes as long as building a small batch.
    return np.asarray(tokens).view(tokenizer.dtype)


def _cache_path(fingerprint: str, tokenizer: Tokenizer) -> Path:
    """Return the path of an encoded text. The file holds its tokens, then their CRC-32."""
    hashes = (hashlib.sha256(text.encode()).hexdigest()[:32] for text in (fingerprint, tokenizer.to_json()))
    return cache_folder() / "tokens" / "-".join(hashes)
