"""Tokens on disk and in batches: a corpus encoded once to a memory map, and what each step reads of it."""

import hashlib
import json
import os
import shutil
import zlib
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import uuid4

import numpy as np

from minigpt.config.schema import DataConfig
from minigpt.errors import UserError
from minigpt.files import remove_abandoned, sync
from minigpt.paths import cache_folder
from minigpt.text.sources import Corpus, Scan, is_read_once, open_corpus, scan
from minigpt.text.tokenizer import Ids, Tokenizer, Unknown, build

LARGE_VOCABULARY = 20_000
ELSEWHERE = "--resume RUN --set data.source=TEXT"
"""How a run learns that its text is in another place than it was."""


@dataclass(frozen=True)
class TokenDataset:
    """A text as tokens, split for training and validation. The two never overlap."""

    train: Ids
    validation: Ids
    tokenizer: Tokenizer
    fingerprint: str
    """sha256 of the text; joined by "+" with that of the validation text where it is one of its own."""
    characters: int
    notices: tuple[str, ...] = ()
    encoded: tuple[Ids, ...] = ()
    """What the two are cut from: one text, or one for each."""

    def resplit(self, val_fraction: float) -> "TokenDataset":
        """Return the same text with another share of it for validation. A validation text of its own stays."""
        train, validation = split(self.encoded, val_fraction)
        return replace(self, train=train, validation=validation)

    @property
    def characters_per_token(self) -> float:
        """Return 1 with the char tokenizer, and at least a quarter with the byte tokenizer."""
        return self.characters / (len(self.train) + len(self.validation))


def load_dataset(config: DataConfig, known: tuple[str, Tokenizer] | None = None) -> TokenDataset:
    """Read, scan and encode the text of `config`, or map what an earlier run encoded.

    `known` is the fingerprint and tokenizer of a run to go on with: its text may then come out of the
    cache when it was standard input or a pipe, and must be the same otherwise. Raises UserError.
    """
    read_once = known is not None and any(map(is_read_once, (*config.source, *config.val_source)))
    if known and read_once and (cached := _from_cache(config, *known)):
        return cached
    sources = [config.source, config.val_source] if config.val_source else [config.source]
    try:
        corpora = [open_corpus(source, config.encoding) for source in sources]
    except UserError as error:
        if known is None:
            raise
        if read_once:
            raise UserError(
                "this run read its text from standard input or a pipe, and the encoded copy is no longer in the cache; "
                f"send it the same text again ({error})"
            ) from error
        raise UserError(f"{error} (where the run's text lies elsewhere now: {ELSEWHERE})") from error
    if known is None and len(corpora) > 1:
        _refuse_overlap(*corpora)
    scans = [scan(corpus) for corpus in corpora]
    if len({found.fingerprint for found in scans}) < len(scans):
        raise UserError("data.val_source is the same text as data.source: its loss would say nothing about new text")
    fingerprint = "+".join(found.fingerprint for found in scans)
    if known and fingerprint != known[0]:
        found_before = zip(corpora, scans, known[0].split("+"), strict=False)
        other = next((corpus for corpus, found, before in found_before if found.fingerprint != before), corpora[-1])
        raise UserError(
            f"the text of {other.name} is not the one this run was trained on; put that back, say where it is with "
            f"{ELSEWHERE}, or start a new run"
        )
    tokenizer = known[1] if known else build(config.tokenizer, "".join(char for s in scans for char in s.counts))
    encoded = tuple(encode(corpus, found, tokenizer) for corpus, found in zip(corpora, scans, strict=True))
    train, validation = split(encoded, config.val_fraction)
    notices = [notice for corpus in corpora for notice in corpus.notices]
    twice = [part.label for part, times in Counter(corpora[0].parts).items() if times > 1]
    if twice and len(corpora) == 1:
        notices.append(f"{twice[0]} is read twice: what validates may be trained on too")
    if returns := sum(found.counts.get("\r", 0) for found in scans):
        notices.append(
            f"the text has {returns:,} carriage returns (Windows line ends), kept as characters of their own"
        )
    if tokenizer.vocab_size > LARGE_VOCABULARY:
        notices.append(
            f"the text has {tokenizer.vocab_size:,} distinct characters, each with an embedding of its own; "
            "--set data.tokenizer=byte needs only 256"
        )
    characters = sum(found.characters for found in scans)
    return TokenDataset(train, validation, tokenizer, fingerprint, characters, tuple(notices), encoded)


def load_validation(config: DataConfig, fingerprint: str, tokenizer: Tokenizer) -> Ids:
    """Return the validation tokens (N,) of the run with this fingerprint and tokenizer.

    Raises:
        UserError: The run's text is missing or has changed.
    """
    return load_dataset(config, known=(fingerprint, tokenizer)).validation


def split(encoded: Sequence[Ids], val_fraction: float) -> tuple[Ids, Ids]:
    """Return training and validation tokens: two texts as they are, or one text and its tail.

    Raises UserError when either is shorter than the two tokens that one prediction needs.
    """
    if len(encoded) == 2:
        train, validation = encoded
    else:
        (tokens,) = encoded
        # Both parts have at least two tokens, so that a text of a few words still has a validation loss.
        at = max(2, min(int(len(tokens) * (1 - val_fraction)), len(tokens) - 2))
        train, validation = tokens[:at], tokens[at:]
    for name, tokens in (("training", train), ("validation", validation)):
        if len(tokens) < 2:
            raise UserError(f"the text is too short: {len(tokens)} tokens for {name}, at least 2 are needed")
    return train, validation


# --- encoding ----------------------------------------------------------------------------------------


def encode(corpus: Corpus, scanned: Scan, tokenizer: Tokenizer) -> Ids:
    """Return the tokens of `corpus` as a read-only memory map, encoding them in a stream if need be.

    They are kept under the cache folder by the text's fingerprint and the tokenizer; of several
    processes that encode the same text, the first to finish publishes and the others use that.
    """
    folder = _encoded_folder(scanned.fingerprint, tokenizer)
    if folder.is_dir():
        with suppress(UserError):  # what is damaged is made anew from the text, which is at hand
            return _open_encoded(folder, tokenizer)
        shutil.rmtree(folder, ignore_errors=True)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        remove_abandoned(folder.parent, "building-*")
        building = folder.with_name(f"building-{uuid4().hex}")
        building.mkdir()  # readable as the user's other folders are: a cache may be shared
    except OSError as error:
        raise UserError(f"cannot write to the cache: {error}; set MINIGPT_CACHE to another folder") from error
    try:
        _encode_into(building, corpus, scanned, tokenizer)
        _publish(building, folder)
    except OSError as error:
        raise UserError(f"cannot write the encoded text: {error}; set MINIGPT_CACHE to another folder") from error
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return _open_encoded(folder, tokenizer)


def encode_known(corpus: Corpus, tokenizer: Tokenizer, unknown: Unknown) -> Ids:
    """Return the tokens of `corpus`, characters that the tokenizer does not know skipped or replaced; kept nowhere."""
    return np.concatenate([tokenizer.encode(block, unknown) for block in corpus.blocks()])


def _refuse_overlap(source: Corpus, validation: Corpus) -> None:
    """Raise UserError for a file that is both trained on and validated on."""
    trained = {(os.path.realpath(part.path), part.member) for part in source.parts}
    both = [part for part in validation.parts if (os.path.realpath(part.path), part.member) in trained]
    if both:
        raise UserError(f"{both[0].label} is in data.source and in data.val_source: a loss on it would say nothing")


def _encode_into(folder: Path, corpus: Corpus, scanned: Scan, tokenizer: Tokenizer) -> None:
    characters = checksum = 0
    with open(folder / "tokens.bin", "wb") as file:
        for block in corpus.blocks():
            ids = tokenizer.encode(block, offset=characters)
            file.write(ids.data)
            checksum = zlib.crc32(ids.data, checksum)
            characters += len(block)
        file.flush()
        sync(file.fileno())
    if characters != scanned.characters or corpus.stamps() != scanned.stamps:
        raise UserError(f"{corpus.name} changed while it was read; run again when nothing writes to it")
    (folder / "tokens.json").write_text(json.dumps({"crc32": checksum}), encoding="utf-8")


def _publish(building: Path, folder: Path) -> None:
    try:
        building.rename(folder)
    except OSError:
        if not folder.is_dir():  # not a run that was faster, but a real failure
            raise


def cached_text(fingerprint: str, tokenizer: Tokenizer) -> Ids | None:
    """Return the tokens (N,) of a text that was trained on here, the first of two, if they are still in the cache.

    They are not checked, which would read all of them: this is for guesses.
    """
    with suppress(UserError):  # a cache may be cleared at any time
        folder = _encoded_folder(fingerprint.partition("+")[0], tokenizer)
        return _open_encoded(folder, tokenizer, is_checked=False)
    return None


def _open_encoded(folder: Path, tokenizer: Tokenizer, is_checked: bool = True) -> Ids:
    try:
        tokens: Ids = np.memmap(folder / "tokens.bin", dtype=tokenizer.dtype, mode="r")
        if is_checked:
            description = json.loads((folder / "tokens.json").read_text(encoding="utf-8"))
            if zlib.crc32(tokens.data) != description["crc32"]:
                raise ValueError("its tokens changed since they were written")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(
            f"the cached text in {folder} is damaged ({error}); delete that folder and run again"
        ) from error
    return np.asarray(tokens)  # the same map without the subclass, whose bookkeeping costs as much as a small batch


def _encoded_folder(fingerprint: str, tokenizer: Tokenizer) -> Path:
    key = hashlib.sha256(f"{fingerprint} {tokenizer.to_json()}".encode()).hexdigest()[:32]
    return cache_folder() / "encoded" / key


def _from_cache(config: DataConfig, fingerprint: str, tokenizer: Tokenizer) -> TokenDataset | None:
    folders = [_encoded_folder(part, tokenizer) for part in fingerprint.split("+")]
    if not all(folder.is_dir() for folder in folders):
        return None
    encoded = tuple(_open_encoded(folder, tokenizer) for folder in folders)
    train, validation = split(encoded, config.val_fraction)
    characters = sum(tokenizer.characters(tokens) for tokens in encoded)
    return TokenDataset(train, validation, tokenizer, fingerprint, characters, encoded=encoded)
