"""Token datasets: encoded once into the cache, split without overlap, and checked when a run resumes."""

import io
import os
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import example, given

from minigpt.config.schema import DataConfig
from minigpt.errors import TextMismatchError, UserError
from minigpt.text import dataset as data
from minigpt.text import sources as text_sources
from minigpt.text.corpus import Corpus, Part, scan
from minigpt.text.sources import open_corpus
from minigpt.text.tokenizer import ByteTokenizer, CharTokenizer


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MINIGPT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "tokens"


def write(folder: Path, text: str, name: str = "my.txt") -> str:
    path = folder / name
    path.write_bytes(text.encode())
    return str(path)


def encode(source: str, kind: str = "char") -> tuple[data.Ids, CharTokenizer | ByteTokenizer]:
    corpus = open_corpus(source)
    scanned = scan(corpus)
    tokenizer = data.make_tokenizer(kind, scanned.counts)
    return data.encode_cached(scanned, tokenizer), tokenizer


def one_line(caught: pytest.ExceptionInfo[UserError]) -> str:
    assert str(caught.value).isprintable(), "an error is one line"
    return str(caught.value)


# --- encoding ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["char", "byte"])
@pytest.mark.parametrize(
    "letters", ["ab\n", "aé漢😀", "".join(map(chr, range(32, 330)))], ids=["ascii", "mixed", "300 characters"]
)
def test_a_text_of_several_blocks_is_encoded_like_a_whole(tmp_path: Path, kind: str, letters: str) -> None:
    """Multi-byte characters may straddle two reads, and blocks of ASCII may follow others."""
    rng = np.random.default_rng(0)
    text = "".join(letters[i] for i in rng.integers(0, len(letters), 1_300_000)) + "ab" * 700_000
    tokens, tokenizer = encode(write(tmp_path, text), kind)
    assert len(list(open_corpus(str(tmp_path / "my.txt")).blocks())) > 2
    assert tokens.dtype == tokenizer.dtype
    assert np.array_equal(tokens, tokenizer.encode(text))
    assert isinstance(tokens.base, np.memmap) or isinstance(tokens.base.base, np.memmap), "mapped, not in memory"
    assert np.array_equal(data.encode(open_corpus(str(tmp_path / "my.txt")), tokenizer), tokens)
    assert not tokens.flags.writeable


def test_a_cached_text_is_not_encoded_again(tmp_path: Path, cache: Path) -> None:
    corpus = open_corpus(write(tmp_path, "some text"))
    scanned = scan(corpus)
    tokenizer = CharTokenizer("".join(scanned.counts))
    first = data.encode_cached(scanned, tokenizer)
    (tmp_path / "my.txt").unlink()
    with pytest.raises(UserError):
        next(corpus.blocks())
    assert np.array_equal(data.encode_cached(scanned, tokenizer), first)
    assert len(list(cache.iterdir())) == 1


@pytest.mark.parametrize("damage", ["flipped", "cut"])
def test_a_damaged_file_in_the_cache_is_written_again(tmp_path: Path, cache: Path, damage: str) -> None:
    path = tmp_path / "a.txt"
    path.write_text("some text " * 50, encoding="utf-8")
    scanned = scan(open_corpus([str(path)]))
    tokenizer = CharTokenizer(scanned.counts)
    expected = data.encode_cached(scanned, tokenizer).copy()
    (file,) = cache.iterdir()
    content = bytearray(file.read_bytes())
    content[7] ^= 1
    file.unlink()
    file.write_bytes(content if damage == "flipped" else content[:100])
    assert np.array_equal(data.encode_cached(scanned, tokenizer), expected)


def test_the_cache_key_is_content_and_vocabulary(tmp_path: Path, cache: Path) -> None:
    for name, text in (("a.txt", "same"), ("b.txt", "same"), ("a.txt", "other")):
        tokens, tokenizer = encode(write(tmp_path, text, name))
        assert tokenizer.decode(tokens) == text
    encode(str(tmp_path / "b.txt"), "byte")
    assert len(list(cache.iterdir())) == 3


class Broken(Corpus):
    """A corpus that raises an exception after its first block."""

    error: BaseException

    def blocks(self) -> Iterator[str]:
        yield next(super().blocks())
        raise self.error


@pytest.mark.parametrize("error", [KeyboardInterrupt(), UserError("unreadable"), OSError("disk full"), MemoryError()])
def test_an_encoding_that_fails_leaves_nothing_behind(tmp_path: Path, cache: Path, error: BaseException) -> None:
    corpus = open_corpus(write(tmp_path, "some text"))
    broken = Broken(corpus.name, corpus.parts)
    object.__setattr__(broken, "error", error)
    with pytest.raises(UserError if isinstance(error, OSError) else type(error)):
        data.encode_cached(replace(scan(corpus), corpus=broken), CharTokenizer("some text"))
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize("later", ["abcabc", "cba"])
def test_a_text_that_changes_between_scan_and_encoding_is_an_error(tmp_path: Path, cache: Path, later: str) -> None:
    corpus = open_corpus(write(tmp_path, "abc"))
    scanned = scan(corpus)
    write(tmp_path, later)
    with pytest.raises(UserError, match="changed while minigpt was reading it"):
        data.encode_cached(scanned, CharTokenizer("abc"))
    assert list(cache.iterdir()) == []


def test_files_of_killed_processes_leave_the_cache_a_day_later(tmp_path: Path, cache: Path) -> None:
    cache.mkdir(parents=True)
    new, old = (cache / f".{name}.{name * 32}.tmp" for name in "ab")
    for path, age in ((new, 0), (old, 90_000)):
        path.touch()
        os.utime(path, (0, time.time() - age))
    encode(write(tmp_path, "some text"))
    assert (new.exists(), old.exists()) == (True, False), "another process may still write a new file"


@pytest.mark.skipif(os.name == "nt", reason="needs POSIX")
def test_files_in_the_cache_have_the_usual_permissions(tmp_path: Path, cache: Path) -> None:
    """Several users may share a cache."""
    before = os.umask(0o022)
    try:
        encode(write(tmp_path, "some text"))
    finally:
        os.umask(before)
    (file,) = cache.iterdir()
    assert oct(file.stat().st_mode & 0o777) == oct(0o644)


# --- datasets ------------------------------------------------------------------------------------------


def test_tiny_shakespeare_has_the_usual_split(shakespeare: Path) -> None:
    """Published losses on this text use this split."""
    found = data.load_dataset(DataConfig(source=(str(shakespeare),)))
    assert (len(found.train), len(found.validation)) == (1_003_854, 111_540)
    assert (found.characters, found.tokenizer.vocab_size) == (1_115_394, 65)
    text = shakespeare.read_text(encoding="utf-8")
    assert (
        found.tokenizer.decode(found.train[-9:]) + found.tokenizer.decode(found.validation[:9])
        == (text[1_003_845:1_003_863])
    )


@given(st.integers(0, 3000), st.floats(0, 1, exclude_min=True, exclude_max=True))
@example(4, 0.999999)
@example(4, 1e-300)
@example(3, 0.5)
def test_the_split_loses_nothing(length: int, fraction: float) -> None:
    tokens = np.arange(length, dtype=np.uint16)
    if length < 4:
        with pytest.raises(UserError, match="the text is too short"):
            data.split([tokens], fraction)
        return
    train, validation = data.split([tokens], fraction)
    assert np.array_equal(np.concatenate([train, validation]), tokens)
    assert min(len(train), len(validation)) >= 2
    assert abs(len(validation) - fraction * length) < 3


def test_a_separate_validation_text(cache: Path, tmp_path: Path) -> None:
    """All of the source is training text. The vocabulary has the characters of both."""
    config = DataConfig(source=(write(tmp_path, "aabb", "a.txt"),), val_source=(write(tmp_path, "abé", "b.txt"),))
    found = data.load_dataset(config)
    assert found.tokenizer.decode(found.train) == "aabb"
    assert found.tokenizer.decode(found.validation) == "abé"
    assert found.characters == 7
    again = data.reload_dataset(config, found.fingerprint, found.tokenizer)
    assert np.array_equal(again.validation, found.validation)
    shutil.rmtree(cache)
    write(tmp_path, "abx", "b.txt")
    with pytest.raises(TextMismatchError, match=r"a.txt or b.txt is not the text that this run was trained on"):
        data.reload_dataset(config, found.fingerprint, found.tokenizer)


def test_line_ends_of_any_system_give_the_same_dataset(tmp_path: Path) -> None:
    found = [
        data.load_dataset(DataConfig(source=(write(tmp_path, f"ab{end}" * 9, f"{number}.txt"),)))
        for number, end in enumerate(("\n", "\r\n", "\r"))
    ]
    assert len({each.fingerprint for each in found}) == 1
    assert found[1].tokenizer.decode(found[1].train).startswith("ab\nab\n")


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX")
def test_a_file_in_both_texts_is_refused(tmp_path: Path) -> None:
    """The loss on training text says nothing about new text. An older run with such texts can be resumed."""
    sources = (write(tmp_path, "abcabc", "a.txt"), write(tmp_path, "bcabca", "b.txt"))
    (tmp_path / "link.txt").symlink_to("b.txt")
    config = DataConfig(source=sources, val_source=(str(tmp_path / "link.txt"),))
    with pytest.raises(UserError, match=r"data\.val_source shares text with data\.source"):
        data.load_dataset(config)
    known = "+".join(scan(open_corpus(source)).fingerprint for source in (sources, sources[1]))
    assert len(data.reload_dataset(config, known, CharTokenizer("abc")).validation) == 6
    copy = DataConfig(source=sources[:1], val_source=(write(tmp_path, "abcabc", "copy.txt"),))
    with pytest.raises(UserError, match=r"data\.val_source shares text with data\.source"):
        data.load_dataset(copy)


@pytest.mark.parametrize(("text", "val"), [("abc", None), ("a", "abc"), ("abc", "a")])
def test_a_text_too_short_for_one_prediction_is_an_error(tmp_path: Path, text: str, val: str | None) -> None:
    val_source = (write(tmp_path, val, "v.txt"),) if val else ()
    with pytest.raises(UserError) as caught:
        data.load_dataset(DataConfig(source=(write(tmp_path, text),), val_source=val_source))
    assert "the text is too short" in one_line(caught)


def test_the_byte_tokenizer_counts_characters(tmp_path: Path) -> None:
    source = (write(tmp_path, "".join(map(chr, range(0x4E00, 0x4E00 + 300)))),)
    found = data.load_dataset(DataConfig(source=source, tokenizer="byte"))
    assert found.characters == 300
    assert found.characters_per_token == pytest.approx(1 / 3)


def test_a_resumed_run_has_its_own_tokenizer_and_needs_the_same_text(cache: Path, tmp_path: Path) -> None:
    config = DataConfig(source=(write(tmp_path, "hello world"),))
    first = data.load_dataset(config)
    again = data.reload_dataset(config, first.fingerprint, first.tokenizer)
    assert again.tokenizer is first.tokenizer
    assert np.array_equal(again.train, first.train)
    write(tmp_path, "hello worlds")
    shutil.rmtree(cache)
    with pytest.raises(TextMismatchError, match=r"my.txt is not the text that this run was trained on"):
        data.reload_dataset(config, first.fingerprint, first.tokenizer)
    assert not cache.exists(), "nothing is written before the text has its fingerprint"


@pytest.mark.parametrize("change", ["edited", "deleted"])
@pytest.mark.parametrize("sources", [("my.txt",), ("*.txt",), (".",), ("my.txt", "builtin:stories:50")])
def test_a_run_keeps_its_cached_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str, sources: tuple[str, ...]
) -> None:
    """A new text must have been named by the user, and then be the same."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "hello world")
    config = DataConfig(source=sources)
    first = data.load_dataset(config)
    known = first.fingerprint, first.tokenizer, first.characters_read
    assert data.reload_dataset(config, *known).notices == ()
    (tmp_path / "my.txt").unlink()
    if change == "edited":
        later = time.time() + 9  # a file system may have coarse times
        os.utime(write(tmp_path, "hello worlds"), (later, later))
    again = data.reload_dataset(config, *known)
    assert np.array_equal(again.train, first.train)
    assert (again.characters, again.characters_read) == (first.characters, first.characters_read)
    problem = {"edited": "may have changed since it was cached", "deleted": "is missing"}[change]
    assert again.notices == (f"{sources[0]} {problem}: using the cached text",)
    with pytest.raises(TextMismatchError):
        data.reload_dataset(config, *known, is_named=True)


def test_a_forged_fingerprint_of_several_texts_is_a_mismatch(tmp_path: Path) -> None:
    config = DataConfig(source=(write(tmp_path, "hello world"),))
    first = data.load_dataset(config)
    for parts in (2, 3):
        forged = "+".join([first.fingerprint] * parts)
        with pytest.raises(TextMismatchError):
            data.reload_dataset(config, forged, first.tokenizer)
    config = config.model_copy(update={"val_source": config.source})
    with pytest.raises(TextMismatchError):
        data.reload_dataset(config, forged, first.tokenizer)


@pytest.mark.parametrize("kind", ["char", "byte"])
def test_a_text_from_standard_input_is_in_the_cache_or_can_be_sent_again(
    cache: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    def send(text: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))

    send("text from a pipe: é".encode())
    config = DataConfig(source=("-",), tokenizer=kind)
    found = data.load_dataset(config)
    known = found.fingerprint, found.tokenizer
    again = data.reload_dataset(config, *known)
    assert (again.train.tolist(), again.characters) == (found.train.tolist(), found.characters)
    shutil.rmtree(cache)
    send("text from a pipe: é".encode())
    assert data.reload_dataset(config, *known).train.tolist() == found.train.tolist()
    shutil.rmtree(cache)
    send(b"another text")
    with pytest.raises(UserError, match="is not the text that this run was trained on"):
        data.reload_dataset(config, *known)
    send(b"")
    with pytest.raises(TextMismatchError, match="the text of this run is not available: standard input"):
        data.reload_dataset(config, *known)
    assert not cache.exists(), "nothing is written before the text has its fingerprint"


def test_a_run_on_a_built_in_text_survives_an_update_of_python(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_sources, "topics", {"a": "text of this Python"})
    config = DataConfig(source=("builtin:pydoc",))
    before = data.load_dataset(config)
    monkeypatch.setattr(text_sources, "topics", {"a": "text of the next Python"})
    after = data.reload_dataset(config, before.fingerprint, before.tokenizer)
    assert after.train.tolist() == before.train.tolist()


def test_a_run_on_stories_survives_an_empty_cache(cache: Path) -> None:
    config = DataConfig(source=("builtin:stories:2000:7",))
    before = data.load_dataset(config)
    shutil.rmtree(cache)
    after = data.reload_dataset(config, before.fingerprint, before.tokenizer)
    assert after.train.tolist() == before.train.tolist()
    other = DataConfig(source=("builtin:stories:2000:8",))
    with pytest.raises(TextMismatchError, match="builtin:stories:2000:8 is not the text that this run was trained on"):
        data.reload_dataset(other, before.fingerprint, before.tokenizer, is_named=True)


def test_a_text_that_has_grown_is_not_read_to_its_end(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = DataConfig(source=(write(tmp_path, "abcabc"),))
    found = data.load_dataset(config)
    shutil.rmtree(cache)
    write(tmp_path, "abc" * 1_000_000)
    read: list[int] = []

    def chunks(part: Part, size: int) -> Iterator[bytes]:
        for chunk in whole(part, size):
            read.append(len(chunk))
            yield chunk

    whole = Part.chunks
    monkeypatch.setattr(Part, "chunks", chunks)
    with pytest.raises(TextMismatchError, match=r"my.txt is not the text that this run was trained on"):
        data.reload_dataset(config, found.fingerprint, found.tokenizer, found.characters_read)
    assert sum(read) < 3_000_000


def test_skipped_characters_are_counted_as_read(tmp_path: Path) -> None:
    config = DataConfig(source=(write(tmp_path, "abcabcx"),), unknown="skip")
    found = data.load_dataset(config, CharTokenizer("abc"))
    assert (found.characters, found.characters_read) == (6, 7)
    again = data.reload_dataset(config, found.fingerprint, found.tokenizer, found.characters_read)
    assert np.array_equal(again.train, found.train)


def test_a_file_added_to_a_folder_is_named_as_a_reason(cache: Path, tmp_path: Path) -> None:
    folder = tmp_path / "notes"
    folder.mkdir()
    (folder / "a.txt").write_text("some text", encoding="utf-8")
    config = DataConfig(source=(str(folder),))
    before = data.load_dataset(config)
    (folder / "b.txt").write_text("more text", encoding="utf-8")
    shutil.rmtree(cache)
    with pytest.raises(TextMismatchError, match=r"\(one of 2 files was added, removed or changed\)"):
        data.reload_dataset(config, before.fingerprint, before.tokenizer)
