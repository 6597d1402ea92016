"""Which text is looked at, and how each of its characters is shown where nothing may stay invisible."""

import unicodedata
from dataclasses import dataclass

import numpy as np
import torch

from minigpt.errors import UserError
from minigpt.sampling.generate import generate_ids
from minigpt.storage.checkpoint import Checkpoint
from minigpt.text.tokenizer import ByteTokenizer, Ids, Tokenizer

MOST = 512
"""Tokens that are looked at, at most: a matrix of more is no longer read by eye."""
USUAL = 256
"""Tokens that are looked at where nobody says how many."""
BLANK = "\u115f\u1160\u2800\u3164\uffa0"
"""Letters and a symbol that are drawn as nothing."""
NAMED = {" ": "␣", "\n": "↵", "\t": "⇥", "\r": "␍", "\x7f": "␡", "\xa0": "⍽"}


@dataclass(frozen=True)
class Excerpt:
    """A text as the model reads it."""

    ids: Ids
    """Its tokens, (T,)."""
    characters: list[str]
    """What each token stands for: a character, or a byte as \\xE6 where it is none by itself."""
    source: str
    """Where it is from, for people."""
    left_out: int = 0
    """Tokens of the text given that are not looked at, because they stand before the last `len(ids)`."""


def given(loaded: Checkpoint, ids: Ids, source: str, most: int | None = None) -> Excerpt:
    """Return the last tokens of `ids`, as many as the context and `most` allow. Raises UserError for an empty text."""
    if len(ids) == 0:
        raise UserError("there is nothing to look at: the text is empty")
    kept = ids[-min(most or MOST, loaded.config.model.context) :]
    return Excerpt(kept, characters(loaded.tokenizer, kept), source, len(ids) - len(kept))


def of_validation(loaded: Checkpoint, tokens: Ids, offset: int, most: int | None = None) -> Excerpt:
    """Return what stands `offset` tokens into the validation split. Raises UserError for an offset beyond its end."""
    if not 0 <= offset < len(tokens):
        raise UserError(f"--val {offset}: the validation split has {len(tokens):,} tokens, counted from 0")
    length = min(most or USUAL, loaded.config.model.context)
    return given(loaded, np.asarray(tokens[offset : offset + length]), f"validation split from {offset}", most)


def of_the_model(loaded: Checkpoint, most: int | None = None) -> Excerpt:
    """Return a text that the model draws itself, for a run whose own text is not at hand."""
    length = min(most or USUAL, loaded.config.model.context)
    settings = loaded.config.sample.model_copy(update={"length": length})
    prompt = torch.tensor(loaded.tokenizer.encode(settings.prompt or "\n", "replace").astype(np.int64))
    drawn = [token for token, _ in generate_ids(loaded.model, prompt, settings)]
    return given(loaded, torch.cat(drawn).numpy(), "drawn by the model itself", most)


def characters(tokenizer: Tokenizer, ids: Ids) -> list[str]:
    """Return what each token stands for, as Excerpt.characters does."""
    if isinstance(tokenizer, ByteTokenizer):
        return [chr(byte) if byte < 128 else f"\\x{byte:02X}" for byte in ids.tolist()]
    return [tokenizer.decode([i]) for i in ids.tolist()]


def glyph(character: str) -> str:
    """Return `character` so that it can be seen: a sign for blanks and controls, a circle below what combines."""
    if character in NAMED:
        return NAMED[character]
    if len(character) > 1:  # a byte
        return character
    if ord(character) < 32:
        return chr(0x2400 + ord(character))
    kind = unicodedata.category(character)
    if kind in ("Mn", "Me", "Mc"):
        return "◌" + character
    return f"U+{ord(character):04X}" if kind[0] in "CZ" or character in BLANK else character
