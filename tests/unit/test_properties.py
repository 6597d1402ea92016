"""Properties that hold for any input. Hypothesis generates it."""

from __future__ import annotations

import codecs
import gzip
import json
import string
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings

from minigpt.config.resolve import fields, from_yaml, parse_overrides, resolve, to_yaml
from minigpt.config.schema import ModelConfig, RunConfig, SampleConfig
from minigpt.errors import ConfigError, UserError
from minigpt.model.gpt import GPT
from minigpt.model.load import numpy_engine
from minigpt.sampling.generate import generate
from minigpt.text import corpus as text_corpus
from minigpt.text.corpus import scan
from minigpt.text.sources import DOCUMENTS, open_corpus
from minigpt.text.tokenizer import ByteTokenizer, CharTokenizer, from_json, unix_newlines

IN_A_FOLDER = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def one_line(error: UserError) -> str:
    """Return the message. Several problems with settings have a line each."""
    message = str(error)
    lines = message.split("\n  ") if isinstance(error, ConfigError) else [message]
    assert all(line.isprintable() for line in lines), f"not one line: {message!r}"
    assert message
    return message


# --- tokenizers --------------------------------------------------------------------------------------

whole_text = st.text(st.characters(exclude_categories=["Cs"]))


@given(st.lists(whole_text, max_size=5), whole_text, st.sampled_from(["char", "byte"]))
def test_a_text_encodes_in_pieces_as_it_does_at_once(pieces: list[str], more: str, kind: str) -> None:
    tokenizer = CharTokenizer([*"".join(pieces), *more, "a"]) if kind == "char" else ByteTokenizer()
    in_pieces = [i for piece in pieces for i in tokenizer.encode(piece).tolist()]
    assert in_pieces == tokenizer.encode("".join(pieces)).tolist()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["char", "byte", "kind"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["kind", "chars", "x"]), inner),
    max_leaves=8,
)


@given(st.text() | json_values.map(json.dumps) | st.text().map(lambda chars: CharTokenizer(chars).to_json()))
@example('{"kind": "char", "chars": "ab", "kind": "byte"}')
def test_any_json_is_a_tokenizer_or_an_error_of_one_line(text: str) -> None:
    try:
        tokenizer = from_json(text, "a file")
    except UserError as error:
        one_line(error)
    else:
        assert from_json(tokenizer.to_json(), "a copy").to_json() == tokenizer.to_json()


# --- configuration -----------------------------------------------------------------------------------

PUNCTUATION = (*"{}[],\n\t#!%'\"\\~=@`", *("- ", ": ", "? ", "| ", "> ", "\n  ", "&a ", "*a", "!!int ", "---\n", "<<"))
NUMBERS = ("null", "true", "0x10", "1e3", ".inf", "0o7", "1:30", "2020-01-01", "1", "-1", "0", "3.5")
NAMES = [part for key in fields() for part in key.split(".")]
words = st.sampled_from([*NAMES, *PUNCTUATION, *NUMBERS, "classic", "a.txt", "é", "\x85", "\u2028", "\ufeff", "\0"])
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | words
trees = st.dictionaries(
    st.sampled_from([*RunConfig.model_fields, "extra", ""]),
    scalars | st.dictionaries(words | st.text(max_size=4), scalars | st.lists(scalars, max_size=3), max_size=4),
    max_size=4,
)
yaml_texts = st.one_of(
    st.text(),
    st.lists(words, max_size=30).map("".join),
    trees.map(json.dumps),  # most JSON is YAML
    trees.map(lambda tree: "".join(f"{section}:\n  {value}\n" for section, value in tree.items())),
)


def read_back(config: RunConfig) -> None:
    assert from_yaml(to_yaml(config), "saved") == config


@given(yaml_texts)
@example("model: {n_layer: 1" + "0" * 400 + "}")
@example("train: {steps: 1.0e+308}")
@example('sample: {prompt: "\\ud800"}')
@example("? {a: b}\n: c")
@example("model: {n_layer: .1e400}")
@settings(max_examples=150)
def test_any_yaml_is_a_configuration_or_an_error_of_one_line(text: str) -> None:
    try:
        config = from_yaml(text, "my\nfile.yaml")
    except UserError as error:
        one_line(error)
    else:
        read_back(config)


values = st.one_of(
    words,
    st.text(),
    st.integers().map(str),
    st.floats().map(str),
    scalars.map(json.dumps),
    st.lists(words, max_size=6).map("".join),
    st.lists(st.text(max_size=5), max_size=3).map(json.dumps),
)
assignments = st.builds("{}={}".format, st.sampled_from(sorted(fields())) | st.text(max_size=8), values) | st.text()


@given(st.lists(assignments, max_size=4))
@example(["sample.prompt=\ud800"])
@example(["model.n_embd=" + "9" * 4000])
@example(["data.source=[*a]", "data.source=[&a x]"])
@settings(max_examples=150)
def test_any_overrides_are_a_configuration_or_an_error_of_one_line(given_: list[str]) -> None:
    try:
        config = resolve(parse_overrides(given_)).config
    except UserError as error:
        one_line(error)
    else:
        read_back(config)


# --- corpora -----------------------------------------------------------------------------------------

ENCODINGS = (
    *("utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be", "utf-7"),
    *("ascii", "latin-1", "cp1252", "cp437", "cp037", "mac-roman", "koi8-r", "iso8859-7", "unicode_escape"),
    *("raw_unicode_escape", "gb18030", "gbk", "hz", "big5", "big5hkscs", "shift_jis", "shift_jisx0213", "euc_jp"),
    *("euc_kr", "johab", "iso2022_jp", "iso2022_jp_3", "iso2022_kr", "tis-620", "palmos", "undefined"),
)
MARKS = (codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)
chunks = st.one_of(
    st.binary(max_size=12),
    st.sampled_from([*MARKS, b"\r\n", b"\r", b"\n", b"\x1a", b"\xe2\x82", b"\xf0\x9f\x98", b"~{", b"\x1b$B", b"+AOk-"]),
    st.text(max_size=6).map(lambda text: text.encode("utf-8", "surrogatepass")),
)


@contextmanager
def blocks_of(size: int) -> Iterator[None]:
    """Read files in chunks of `size` bytes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_corpus, "BLOCK", size)
        yield


def python_reads(data: bytes, encoding: str) -> str | None:
    """Return what Python decodes at once, without a byte order mark and with \\n as line ends; None if it fails."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # about unknown escapes
            text = data.decode(encoding)
    except UnicodeError:
        return None
    return unix_newlines(text.removeprefix("\ufeff"))  # also a second one after that which the codec removes


@given(
    data=st.lists(chunks, max_size=6).map(b"".join) | st.text(max_size=30).map(lambda s: s.encode("utf-8", "replace")),
    encoding=st.sampled_from(ENCODINGS),
    size=st.sampled_from([1, 2, 3, 7, 1 << 20]),
    zipped=st.booleans(),
)
@example(data=b"\xef\xbb\xbfa\xef\xbb\xbf", encoding="utf-8", size=1, zipped=False)
@example(data=b"\xff\xfe", encoding="utf-16", size=1, zipped=True)
@example(data=b"\xef\xbb\xbf\xef\xbb\xbfa", encoding="utf-8-sig", size=1, zipped=False)
@example(data=b"a\\", encoding="unicode_escape", size=1, zipped=False)
@example(data=b"%PDF-", encoding="utf-8", size=1, zipped=False)
@settings(IN_A_FOLDER, max_examples=150)
@pytest.mark.filterwarnings("ignore:invalid escape sequence:DeprecationWarning")
def test_any_bytes_decode_as_in_python_or_give_an_error_of_one_line(
    tmp_path: Path, data: bytes, encoding: str, size: int, zipped: bool
) -> None:
    path = tmp_path / ("a.txt.gz" if zipped else "a.txt")
    path.write_bytes(gzip.compress(data, 1) if zipped else data)
    expected = python_reads(data, encoding)
    binary = "\0" in data.decode(encoding, "replace") if encoding[:6] in ("utf-16", "utf-32") else b"\0" in data
    document = data.startswith(DOCUMENTS)
    unmarked = encoding in ("utf-16", "utf-32") and not data.startswith(MARKS[1:])  # the byte order is unknown
    try:
        with blocks_of(size):
            opened = open_corpus(str(path), encoding)
            read: list[str] | None = list(opened.blocks())
            found = scan(opened)
    except UserError as error:
        read, why = None, one_line(error)
    surrogates = any("\ud800" <= char <= "\udfff" for char in expected or "")
    if read is None:
        assert not expected or binary or unmarked or document or surrogates, f"rejected what Python decodes: {why}"
    else:
        assert "".join(read) == expected
        assert found.characters == len(expected)


@given(
    name=st.text(max_size=20) | st.sampled_from(["idna", "punycode", "mbcs", "oem", "rot13", "zlib", "hex", "charmap"])
)
@settings(IN_A_FOLDER)
@pytest.mark.filterwarnings("ignore:invalid escape sequence:DeprecationWarning")
def test_any_name_of_an_encoding_works_or_gives_an_error_of_one_line(tmp_path: Path, name: str) -> None:
    (tmp_path / "a.txt").write_bytes(b"abc")
    try:
        assert "".join(open_corpus(str(tmp_path / "a.txt"), name).blocks())
    except UserError as error:
        one_line(error)


# --- sampling ----------------------------------------------------------------------------------------

CHARS = CharTokenizer("abcdefg\n\x1bé😀")
BYTES = ByteTokenizer()


def model_for(vocab_size: int, position: Any) -> GPT:
    torch.manual_seed(0)
    model = GPT(ModelConfig(n_layer=1, n_head=2, n_embd=8, context=6, position=position), vocab_size)
    for parameter in model.parameters():
        if parameter.ndim == 2:
            torch.nn.init.normal_(parameter, std=0.5)
    return model.eval()


ENGINES = {
    (tokenizer, position): numpy_engine(model_for(tokenizer.vocab_size, position))
    for tokenizer in (CHARS, BYTES)
    for position in ("rotary", "learned")
}

options = st.builds(
    SampleConfig,
    length=st.integers(1, 25),
    temperature=st.just(0.0) | st.floats(1e-3, 1e3) | st.sampled_from([1e-300, 1e18]),
    top_k=st.integers(0, 300) | st.just(2**63 - 1),
    top_p=st.floats(0, 1, exclude_min=True),
    min_p=st.floats(0, 1),
    seed=st.integers(0, 2**63 - 1),
)


@given(
    which=st.sampled_from(sorted(ENGINES, key=str)),
    settings_=options,
    prompt=st.text(st.sampled_from(CHARS.chars), max_size=15),
    count=st.integers(1, 3),
    stop=st.lists(st.text(st.sampled_from(CHARS.chars), max_size=3), max_size=2),
)
@settings(max_examples=25)
def test_any_options_sample_the_same_text_each_time(
    which: tuple[Any, str], settings_: SampleConfig, prompt: str, count: int, stop: list[str]
) -> None:
    tokenizer, _ = which

    def sampled(many: int) -> list[tuple[int, str]]:
        chars = generate(ENGINES[which], tokenizer, prompt, settings_, num_samples=many, stop=stop)
        return [(char.sample, char.text) for char in chars]

    first = sampled(count)
    for index, text in first:
        assert 0 <= index < count
        assert len(text) == 1
        assert tokenizer is BYTES or text in CHARS.chars
    assert sampled(count) == first
    texts = ["".join(text for index, text in first if index == i) for i in range(count)]
    assert "".join(text for _, text in sampled(1)) == texts[0]
    for text in texts:
        assert len(text) <= settings_.length
        assert not any(end and end in text for end in stop)


@given(st.text(max_size=30), st.sampled_from(["error", "skip", "replace"]), st.sampled_from([CHARS, BYTES]))
@example("\ud800", "replace", BYTES)
@example(string.printable, "replace", CHARS)
def test_any_prompt_is_continued_or_gives_an_error_of_one_line(prompt: str, unknown: Any, tokenizer: Any) -> None:
    try:
        pieces = list(
            generate(ENGINES[tokenizer, "rotary"], tokenizer, prompt, SampleConfig(length=4), unknown=unknown)
        )
    except UserError as error:
        one_line(error)
        assert unknown == "error"
    else:
        assert len(pieces) <= 5
