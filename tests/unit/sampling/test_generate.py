"""Windows, samples, characters and stop strings."""

import itertools
import math
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from minigpt.config.schema import FAMILIES, ModelConfig, SampleConfig
from minigpt.config.shapes import parameter_shapes
from minigpt.errors import CheckpointError, UnknownCharacterError
from minigpt.sampling.engine import Array
from minigpt.sampling.generate import SampledChar, _Sample, generate, generate_ids, window_start
from minigpt.sampling.load import AnyEngine, build_engine
from minigpt.text.tokenizer import ByteTokenizer, CharTokenizer

CONTEXT = 6
CHARS = CharTokenizer("abcdefghijk\n")


def random_engine(vocab_size: int = CHARS.vocab_size, context: int = CONTEXT, family: str = "modern") -> AnyEngine:
    shape = {"n_layer": 2, "n_head": 2, "n_embd": 16, "context": context}
    config, rng = ModelConfig(**{"family": family, **shape, **FAMILIES[family]}), np.random.default_rng(0)
    weights = {name: rng.normal(0, 0.4, size) for name, size in parameter_shapes(config, vocab_size).items()}
    return build_engine(config, {name: array.astype(np.float32) for name, array in weights.items()})


class Recorded:
    """An engine that records what it reads."""

    def __init__(self, engine: AnyEngine) -> None:
        self.engine, self.context = engine, engine.context
        self.calls: list[tuple[str, list[int]]] = []

    def start(self, ids: np.ndarray) -> Array:
        self.calls.append(("start", ids[0].tolist()))
        return self.engine.start(ids)

    def step(self, ids: np.ndarray) -> Array:
        self.calls.append(("step", ids[:1].tolist()))
        return self.engine.step(ids)


class Fixed:
    """A model that predicts the same distribution after any text."""

    context = 4

    def __init__(self, logits: list[float]) -> None:
        self.logits = np.array([logits], dtype=np.float32)

    def start(self, ids: np.ndarray) -> Array:
        return np.repeat(self.logits, len(ids), 0)

    step = start


def texts(engine: Any, prompt: str = "a", tokenizer: Any = CHARS, **options: Any) -> list[str]:
    """Return the text of each sample. `options` are settings, or arguments of `generate`."""
    arguments = {key: options.pop(key) for key in ("num_samples", "stop", "unknown") if key in options}
    found = [""] * arguments.get("num_samples", 1)
    for char in generate(engine, tokenizer, prompt, SampleConfig(**options), **arguments):
        assert len(char.text) == 1
        found[char.sample] += char.text
    return found


# --- windows -----------------------------------------------------------------------------------------


@hypothesis.given(context=st.integers(1, 40), prompt=st.integers(1, 100), more=st.integers(0, 200))
def test_the_window_fills_the_context_and_then_drops_half_of_it(context: int, prompt: int, more: int) -> None:
    start, following = (window_start(prompt + more + extra, prompt, context) for extra in (0, 1))
    assert 1 <= prompt + more - start <= context
    assert following - start in (0, max(1, context // 2))
    assert window_start(prompt, prompt, context) == max(0, prompt - context)
    if prompt + more <= context:
        assert start == 0


@pytest.mark.parametrize("context", [1, 2, 5, 6])
def test_the_engine_reads_each_window_once_and_each_token_once(context: int) -> None:
    engine, prompt = Recorded(random_engine(context=context)), np.arange(9)
    tokens = [int(ids[0]) for ids, _ in generate_ids(engine, prompt, SampleConfig(length=20))]
    text = [*prompt.tolist(), *tokens]
    starts = [window_start(9 + step, 9, context) for step in range(20)]
    for step, (start, call) in enumerate(zip(starts, engine.calls, strict=True)):
        is_new = step == 0 or start != starts[step - 1]
        assert call == (("start", text[start : 9 + step]) if is_new else ("step", text[9 + step - 1 : 9 + step]))


# --- samples -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_a_sample_depends_on_its_seed_and_index_alone(family: str) -> None:
    """Not on the number of samples, nor on the length."""
    engine = random_engine(family=family)
    found = texts(engine, num_samples=4, length=30, seed=5)
    assert texts(engine, num_samples=2, length=30, seed=5) == found[:2]
    assert texts(engine, length=30, seed=5) == found[:1]
    assert texts(engine, num_samples=4, length=7, seed=5) == [text[:7] for text in found]
    assert len({*found, *texts(engine, num_samples=4, length=30, seed=6)}) == 8


def test_samples_follow_the_distribution_of_the_model() -> None:
    """Pearson's chi-square of the tokens of 4,000 samples, and of 4,000 tokens of one sample."""
    logits, count = [0.0, 1.0, 2.0, 0.5, -0.5, 1.5], 4000
    expected = count * np.exp(np.array(logits) / 0.8) / np.exp(np.array(logits) / 0.8).sum()
    for length, num_samples in ((1, count), (count, 1)):
        settings = SampleConfig(length=length, temperature=0.8)
        steps = generate_ids(Fixed(logits), np.array([1]), settings, num_samples=num_samples)
        found = np.bincount(np.concatenate([ids for ids, _ in steps]), minlength=6)
        assert ((found - expected) ** 2 / expected).sum() < 20.5  # the 0.999 quantile with 5 degrees of freedom


def test_log_probabilities_are_of_the_model_before_any_filter() -> None:
    logits, settings = [0.0, 1.0, 2.0], SampleConfig(length=9, temperature=0.3, top_k=2)
    log_sum = math.log(sum(map(math.exp, logits)))
    for ids, logprobs in generate_ids(Fixed(logits), np.array([1]), settings, num_samples=2):
        assert logprobs.tolist() == pytest.approx([logits[token] - log_sum for token in ids])


def test_text_is_generated_as_it_is_asked_for() -> None:
    engine = Recorded(random_engine())
    chars = generate(engine, CHARS, "abc", SampleConfig(length=50))
    assert engine.calls == []
    next(chars)
    next(chars)
    assert [len(ids) for _, ids in engine.calls] == [3, 1]
    assert len(list(chars)) == 48


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_logits_that_are_not_finite_are_an_error(value: float) -> None:
    for temperature in (0, 1):
        with pytest.raises(CheckpointError, match="not finite"):
            texts(Fixed([0.0, value, 1.0]), temperature=temperature)


# --- prompts -----------------------------------------------------------------------------------------


def test_an_empty_prompt_is_a_line_end() -> None:
    engine = random_engine()
    expected = texts(engine, "\n", length=20)
    assert texts(engine, "", length=20) == expected
    assert texts(engine, "???", length=20, unknown="skip") == expected
    assert len(texts(random_engine(vocab_size=3), "", CharTokenizer("abc"), length=20)[0]) == 20


def test_characters_outside_the_vocabulary_are_an_error_or_skipped_or_replaced() -> None:
    engine = random_engine()
    with pytest.raises(UnknownCharacterError, match="'Z'"):
        texts(engine, "abZc")
    assert texts(engine, "abZc", unknown="skip") == texts(engine, "abc")
    assert texts(engine, "abÁc", unknown="replace") == texts(engine, "abac")


# --- stop strings and bytes --------------------------------------------------------------------------


def until(text: str, stop: list[str]) -> str:
    """Return `text` up to the stop string that is complete first, and of several the longest."""
    for end in range(len(text) + 1):
        starts = [end - len(s) for s in stop if s and text[:end].endswith(s)]
        if starts:
            return text[: min(starts)]
    return text


def sampled(tokens: bytes, stop: tuple[str, ...] = (), logprob: float = -1.0) -> list[SampledChar]:
    """Return the characters of these bytes, each with the same log-probability."""
    sample, found = _Sample(0, ByteTokenizer(), stop), []
    for token in tokens:
        if not sample.has_ended:
            found += sample.push(token, logprob)
    return found if sample.has_ended else found + sample.pending


@hypothesis.given(text=st.text("ab", max_size=20), stop=st.lists(st.text("ab", max_size=4), max_size=3))
@hypothesis.example(text="aab", stop=["ab"])  # a false start overlaps the real one
@hypothesis.example(text="abc", stop=["ab", "abc"])  # one begins the other
@hypothesis.example(text="abc", stop=["abc", "bc"])  # two end together
@hypothesis.example(text="xab", stop=["abc"])  # never completed
@hypothesis.example(text="abc", stop=[""])
def test_a_sample_ends_before_the_first_stop_string(text: str, stop: list[str]) -> None:
    assert "".join(char.text for char in sampled(text.encode(), tuple(stop))) == until(text, stop)


def test_a_stop_string_may_have_the_line_end_of_windows() -> None:
    assert "".join(char.text for char in sampled(b"a\nb", ("\r\n",))) == "a"


def test_only_the_possible_beginning_of_a_stop_string_waits() -> None:
    sample = _Sample(0, ByteTokenizer(), ["bcd"])
    released = ["".join(char.text for char in sample.push(token, 0.0)) for token in b"abcbce"]
    assert released == ["a", "", "", "bc", "", "bce"]


def test_each_sample_stops_on_its_own_and_the_last_one_ends_the_work() -> None:
    tokenizer, options = CharTokenizer("ab\n"), {"num_samples": 3, "length": 60, "temperature": 1.0}
    whole, stop = texts(random_engine(vocab_size=3), "a", tokenizer, **options), ["\n\n", "abb"]
    expected = [until(text, stop) for text in whole]
    assert len({len(text) for text in expected}) > 1
    engine = Recorded(random_engine(vocab_size=3))
    assert texts(engine, "a", tokenizer, stop=stop, **options) == expected
    assert len(engine.calls) < 60
    only_first = [whole[0][20:28]]  # long enough that no other sample has it
    expected = [until(text, only_first) for text in whole]
    assert expected[1:] == whole[1:]
    assert texts(random_engine(vocab_size=3), "a", tokenizer, stop=only_first, **options) == expected
    assert texts(engine, "a", tokenizer, stop=["never"], **options) == whole


@hypothesis.given(data=st.binary(max_size=12) | st.text(max_size=6).map(lambda text: text.encode("utf-8", "replace")))
@hypothesis.example(data=b"\xe2A")  # a byte that ends one character, invalid, and is the next
@hypothesis.example(data=b"\xf0\xf0\x9f\x98\x80")
def test_bytes_become_characters_and_no_log_probability_is_lost(data: bytes) -> None:
    chars = sampled(data + b"\n")
    assert "".join(char.text for char in chars) == (data + b"\n").decode("utf-8", "replace")
    assert all(len(char.text) == 1 for char in chars)
    assert sum(char.logprob for char in chars) == -len(data) - 1


def test_characters_of_several_bytes() -> None:
    chars = sampled("é€😀".encode(), logprob=-0.5)
    assert chars == [SampledChar(0, "é", -1.0), SampledChar(0, "€", -1.5), SampledChar(0, "😀", -2.0)]
    assert sampled("a€".encode()[:-1]) == [SampledChar(0, "a", -1.0)]  # an incomplete character is left out
    assert "".join(char.text for char in sampled(b"a\xe2END", stop=("END",))) == "a\ufffd"


def test_the_length_counts_bytes_with_the_byte_tokenizer() -> None:
    engine, tokenizer, settings = random_engine(vocab_size=256), ByteTokenizer(), SampleConfig(length=40)
    tokens = [int(ids[0]) for ids, _ in generate_ids(engine, tokenizer.encode("é"), settings)]
    text = "".join(char.text for char in generate(engine, tokenizer, "é", settings))
    assert len(tokens) == 40
    assert list(itertools.islice(tokenizer.decode(tokens), len(text))) == list(text)
    assert tokenizer.decode(tokens).removesuffix("\ufffd").startswith(text.removesuffix("\ufffd"))
