"""The texts that commands are given, and what to do about characters that a model does not know."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from minigpt.errors import UserError

if TYPE_CHECKING:
    from minigpt.text.tokenizer import Ids, Tokenizer


def encode(tokenizer: "Tokenizer", text: str, unknown: Any) -> "Ids":
    """Return the tokens of `text`. Raises UserError for a character unknown to the model, with what to do."""
    with advice_on_unknown():
        return tokenizer.encode(text, unknown)


@contextmanager
def advice_on_unknown() -> Iterator[None]:
    """Add to the error of a character unknown to the model how to go on."""
    from minigpt.errors import UnknownCharacterError

    try:
        yield
    except UnknownCharacterError as error:
        raise UserError(f"{error}; --unknown skip or --unknown replace goes on") from error


def read_text(path: str, encoding: str = "utf-8") -> str:
    """Return the text of a file, or of standard input for "-"."""
    from minigpt.text.sources import open_corpus

    return "".join(open_corpus([path], encoding).blocks())
