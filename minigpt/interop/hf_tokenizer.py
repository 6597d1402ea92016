"""Vocabularies as tokenizer.json of the `tokenizers` library, which transformers reads."""

from typing import Any

from minigpt.text.tokenizer import Tokenizer

_UNUSED = dict.fromkeys(("truncation", "padding", "normalizer", "post_processor"))
_COMMON: dict[str, Any] = {"version": "1.0", "added_tokens": [], **_UNUSED}


def to_tokenizers(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the content of tokenizer.json.

    An out-of-vocabulary character is an error in transformers too: there is no token for it.
    """
    if tokenizer.kind == "char":
        return _COMMON | {
            # The empty pattern matches between any two characters. The pattern "." would skip newlines.
            "pre_tokenizer": {"type": "Split", "pattern": {"String": ""}, "behavior": "Isolated", "invert": False},
            "decoder": {"type": "Fuse"},  # otherwise, spaces would separate the characters
            "model": {
                "type": "WordLevel",
                "vocab": {tokenizer.spell(i).decode(): i for i in range(tokenizer.vocab_size)},
                "unk_token": "<unk>",
            },
        }
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    vocabulary = {symbol: byte for byte, symbol in enumerate(byte_symbols())}
    model = {"type": "BPE", "vocab": vocabulary, "merges": []}
    return _COMMON | {"pre_tokenizer": byte_level, "decoder": byte_level, "model": model}


def byte_symbols() -> str:
    """Return the character for each byte 0 to 255 in GPT-2's tokenizer: printable ones stay, others start at U+0100.

    See `bytes_to_unicode` in https://github.com/openai/gpt-2/blob/master/src/encoder.py.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return "".join(chr(byte if byte in printable else next(others)) for byte in range(256))
