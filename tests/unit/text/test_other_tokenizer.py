"""A tokenizer whose tokens are parts of characters, characters, or several: nothing else needs to know."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from random_models import checkpoint, excerpt

from minigpt.errors import NoCounterpartError, ViewError
from minigpt.interop.export import FORMATS, export
from minigpt.interpret.excerpt import characters
from minigpt.interpret.scores import are_letters, pattern_keys
from minigpt.interpret.simple import explain_loss
from minigpt.model.load import load_model
from minigpt.notebook import Model
from minigpt.text import corpus, dataset
from minigpt.text.sources import open_corpus
from minigpt.text.tokenizer import Ids, Tokenizer, Unknown
from minigpt.training.evaluate import evaluate
from minigpt.viewer.page import build_page

TEXT = "Speak, speak. é!\nSpeak again, spéak.\n"


class Pairs(Tokenizer):
    """Some pairs of bytes are tokens."""

    kind, unit = "pairs", "token"
    pairs = ("ea", "k,", "k.", " s", "\nS", "é", " a")
    vocab_size, dtype = 256 + len(pairs), np.dtype(np.uint16)

    def encode(self, text: str, unknown: Unknown = "error", dtype: npt.DTypeLike = np.int64) -> Ids:
        left, ids, known = text.encode(), list[int](), [pair.encode() for pair in self.pairs]
        while left:
            is_pair = left[:2] in known
            ids.append(256 + known.index(left[:2]) if is_pair else left[0])
            left = left[1 + is_pair :]
        return np.array(ids, dtype=dtype)

    def encode_blocks(self, blocks: Iterable[str], unknown: Unknown) -> Iterator[Ids]:
        yield self.encode("".join(blocks), unknown, self.dtype)

    def decode(self, ids: Sequence[int] | Ids) -> str:
        return b"".join(map(self.spell, ids)).decode("utf-8", "replace")

    def spell(self, i: int) -> bytes:
        return self.pairs[i - 256].encode() if i >= 256 else bytes([i])

    def characters(self, ids: Ids) -> int:
        return len(self.decode(ids))

    def to_json(self) -> str:
        return '{"kind": "pairs"}'


def test_blocks_do_not_cut_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINIGPT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(corpus, "BLOCK", 3)
    (tmp_path / "a.txt").write_text(TEXT, encoding="utf-8")
    opened = open_corpus(str(tmp_path / "a.txt"))
    expected = Pairs().encode(TEXT).tolist()
    assert dataset.encode(opened, Pairs()).tolist() == expected
    assert dataset.encode_cached(corpus.scan(opened), Pairs()).tolist() == expected


def test_the_loss_of_a_text_is_that_of_its_tokens() -> None:
    loaded = checkpoint(tokenizer=Pairs(), context=8)
    ids = loaded.tokenizer.encode(TEXT)
    result, loss = evaluate(load_model(loaded), ids, loaded.tokenizer), Model(loaded).loss(TEXT)
    assert len(loss.losses) == len(TEXT)
    assert np.nansum(loss.losses) == pytest.approx(result.loss * (len(ids) - 1), rel=1e-6)
    assert loss.losses[3] == 0, "the a of ea is in the token of the e"
    assert explain_loss(result.loss, loaded.tokenizer).startswith("Guessing equally among all 263 tokens ")


def test_generated_tokens_become_characters() -> None:
    text = Model(checkpoint(tokenizer=Pairs())).generate("Speak", length=200, seed=1)
    assert len(text.text) == len(text.logprobs)
    assert any(pair in text.text for pair in Pairs.pairs)


def test_an_excerpt_shows_such_tokens_and_a_page_refuses_them() -> None:
    loaded = checkpoint(tokenizer=Pairs(), context=32)
    text = excerpt(loaded, TEXT)
    assert characters(loaded.tokenizer, text.ids)[:6] == ["S", "p", "ea", "k,", " s", "p"]
    with pytest.raises(ViewError, match="tokenizer is pairs"):
        build_page(loaded, text)


def test_words_and_lines_are_those_of_the_tokens() -> None:
    tokens = ["S", "p", "ea", "k, ", "\nS", "\\xC3\\xA9", "e\u0301"]
    assert are_letters(tokens) == [True, True, True, False, False, True, True]
    assert pattern_keys(tokens)["word"].nonzero().tolist() == [[1, 0], [2, 0], [6, 5]]
    assert pattern_keys(tokens)["line"].nonzero().tolist() == [[1, 0], [2, 0], [3, 0], [6, 5]]


@pytest.mark.parametrize("to", FORMATS)
def test_a_format_of_another_program_refuses_such_tokens(to: str, tmp_path: Path) -> None:
    if to != "safetensors":
        with pytest.raises(NoCounterpartError, match="has no counterpart of a pairs tokenizer"):
            export(checkpoint(tokenizer=Pairs()), to, tmp_path / "out")
        return
    export(checkpoint(tokenizer=Pairs()), to, tmp_path / "out")
    readme = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert "263 tokens, of a pairs tokenizer" in readme
    assert "byte with the value" not in readme
