"""Drawing text: the same with a cache as without, from exactly the distribution that was asked for."""

import itertools
import math
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from torch import Tensor

from minigpt.config.schema import FAMILIES, ModelConfig, SampleConfig
from minigpt.errors import UserError
from minigpt.model.gpt import GPT
from minigpt.sampling.decode import KVCache
from minigpt.sampling.draft import Draft
from minigpt.sampling.generate import (
    AHEAD,
    LEAST,
    MOST_STREAMS,
    ROWS,
    Piece,
    _Characters,
    _GumbelNumbers,
    generate,
    generate_ids,
    next_token,
    penalized,
    probabilities,
    window_start,
)
from minigpt.text.tokenizer import ByteTokenizer, CharTokenizer

CONTEXT = 6
CHARS = CharTokenizer("abcdefghijk\n")
POSITIONS = ("learned", "sinusoidal", "rotary", "none")


def model_of(family: str = "modern", vocab_size: int = CHARS.vocab_size, **changes: Any) -> GPT:
    torch.manual_seed(0)
    small = {"n_layer": 2, "n_head": 2, "n_embd": 16, "context": CONTEXT}
    model = GPT(ModelConfig(**{"family": family, **FAMILIES[family], **small, **changes}), vocab_size)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.normal_(std=0.3)  # far from a uniform guess, so that every token of the window counts
    return model.eval()


def draw(model: GPT, prompt: str = "a", tokenizer: Any = CHARS, **options: Any) -> list[str]:
    """The texts of each sample; `options` are settings, or arguments of `generate`."""
    arguments = {
        key: options.pop(key) for key in ("num_samples", "stop", "unknown", "cache", "draft") if key in options
    }
    texts = [""] * arguments.get("num_samples", 1)
    for piece in generate(model, tokenizer, prompt, SampleConfig(**options), **arguments):
        assert len(piece.text) == 1
        texts[piece.sample] += piece.text
    return texts


def widths(model: GPT) -> list[int]:
    """A list that grows by the number of tokens of each forward pass of `model`."""
    seen: list[int] = []
    model.token_embedding.register_forward_pre_hook(lambda module, args: seen.append(args[0].size(1)))
    return seen


# --- the cache and the window ------------------------------------------------------------------------


@pytest.mark.parametrize("prompt", ["a", "abcde", "abcdef", "abcdefg", "abcdefghijkabcdefghijk"], ids=len)
@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_cache_changes_no_text(family: str, position: str, prompt: str) -> None:
    """Below and far beyond the context, each character and its probability are those of the plain path."""
    model, settings = model_of(family, position=position), SampleConfig(length=5 * CONTEXT, temperature=1.0)
    cached, plain = (
        list(generate(model, CHARS, prompt, settings, num_samples=3, cache=cache)) for cache in (True, False)
    )
    assert [(p.sample, p.text) for p in cached] == [(p.sample, p.text) for p in plain]
    assert [p.logprob for p in cached] == pytest.approx([p.logprob for p in plain], abs=1e-4)
    assert len({p.text for p in plain}) > 3


class Told(Draft):
    """Guesses what it is told that texts (B, T) will be, if so wished each third to fifth token of a text wrong."""

    def __init__(self, texts: Tensor, settings: SampleConfig, errs: bool) -> None:
        count, length = texts.shape
        self.places = {
            first: (b, at)
            for b in range(count)
            for at, first in enumerate(
                _GumbelNumbers(settings.seed, b, CHARS.vocab_size, 1).of(0, length)[:, 0].tolist()
            )
        }
        self.texts, self.errs, self.asked = texts.tolist(), errs, 0

    def guess(self, recent: list[int], gumbel: np.ndarray, temperature: float) -> list[int]:
        self.asked += 1
        if len(gumbel) == 0:
            return []
        b, at = self.places[gumbel[0, 0]]
        before = self.texts[b][:at][-len(recent) :]
        assert recent[len(recent) - len(before) :] == before
        following = enumerate(self.texts[b][at : at + len(gumbel)], at)
        return [(token + (self.errs and place % (3 + b % 3) == 0)) % CHARS.vocab_size for place, token in following]


new_cache = KVCache.empty


def poisoned(model: GPT, batch: int, slots: int | None = None) -> KVCache:
    """A cache in whose memory stands what must never be seen."""
    cache = new_cache(model, batch, slots)
    cache.k.fill_(math.nan)
    cache.v.fill_(math.nan)
    return cache


@pytest.mark.parametrize("errs", [False, True])
@pytest.mark.parametrize("num_samples", [1, 4])
@pytest.mark.parametrize("prompt", ["a", "abcdef", "abcdefghijkabcdefghijk"], ids=len)
@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("family", FAMILIES)
def test_guesses_change_no_text(
    monkeypatch: pytest.MonkeyPatch, family: str, position: str, prompt: str, num_samples: int, errs: bool
) -> None:
    """Right or wrong, below and far beyond the context, and right ones take fewer passes of the model."""
    monkeypatch.setattr(KVCache, "empty", staticmethod(poisoned))
    model = model_of(family, position=position, context=12)
    start = torch.tensor(CHARS.encode(prompt).astype("int64"))
    settings = SampleConfig(length=60, temperature=1.0)

    def drawn(draft: Draft | None = None) -> tuple[Tensor, Tensor]:
        ids, logprobs = zip(*generate_ids(model, start, settings, num_samples=num_samples, draft=draft), strict=True)
        return torch.stack(ids, 1), torch.stack(logprobs, 1)  # (B, length)

    plain, plain_logprobs = drawn()
    passes = widths(model)
    guessed, logprobs = drawn(Told(plain, settings, errs))
    assert torch.equal(guessed, plain)
    assert torch.allclose(logprobs, plain_logprobs, atol=1e-4)
    if num_samples == 1 or not errs:  # else windows that move apart are read one by one
        assert len(passes) < (45 if errs else 35)
    assert len(set(plain.flatten().tolist())) > 3


@pytest.mark.parametrize("family", FAMILIES)
def test_texts_get_ahead_of_others_and_end_before_them(family: str) -> None:
    """The one that errs at each third token takes the most passes, and others leave it alone as they end."""
    model, start, settings = model_of(family, context=48), torch.tensor([1]), SampleConfig(length=40, temperature=1.0)
    plain = torch.stack([ids for ids, _ in generate_ids(model, start, settings, num_samples=3)], 1)
    shapes: list[tuple[int, ...]] = []
    model.token_embedding.register_forward_pre_hook(lambda module, args: shapes.append(tuple(args[0].shape)))
    draft = Told(plain, settings, errs=True)
    guessed = torch.stack([ids for ids, _ in generate_ids(model, start, settings, num_samples=3, draft=draft)], 1)
    assert torch.equal(guessed, plain)
    streams = [count for count, _ in shapes]
    assert streams == sorted(streams, reverse=True)
    # The first token is wrong, and then each fifth, fourth and third, which ends a pass.
    assert [sum(count >= n for count in streams) for n in (3, 2, 1)] == [1 + math.ceil(39 / n) for n in (5, 4, 3)]


def test_after_wrong_guesses_fewer_are_made() -> None:
    """As many as were right and four more; eight at most."""
    model, start, settings = model_of(context=48), torch.tensor([1]), SampleConfig(length=40, temperature=0)
    text = [int(ids) for ids, _ in generate_ids(model, start, settings)]
    asked: list[tuple[int, int]] = []  # how many guesses, and how many right ones were given

    class Partly(Draft):
        def guess(self, recent: list[int], gumbel: np.ndarray, temperature: float) -> list[int]:
            at = sum(1 + right for _, right in asked)
            asked.append((len(gumbel), (3, 0, 1, 5, 0, 0, 2)[len(asked) % 7]))
            following = text[at : at + len(gumbel)]
            right = asked[-1][1]
            return [(token + (place == right)) % CHARS.vocab_size for place, token in enumerate(following)]

    list(generate_ids(model, start, settings, draft=Partly(np.zeros(0), CHARS.vocab_size)))
    assert [count for count, _ in asked][:9] == [8, 7, 4, 5, 8, 4, 4, 6, 7]


@pytest.mark.parametrize("num_samples", [5, MOST_STREAMS])
def test_the_more_texts_the_fewer_guesses(num_samples: int) -> None:
    """No pass has more rows than are worth it."""
    model, start, settings = model_of(context=48), torch.tensor([1, 2]), SampleConfig(length=40, temperature=1.0)
    plain = torch.stack([ids for ids, _ in generate_ids(model, start, settings, num_samples=num_samples)], 1)
    shapes: list[tuple[int, ...]] = []
    model.token_embedding.register_forward_pre_hook(lambda module, args: shapes.append(tuple(args[0].shape)))
    draft = Told(plain, settings, errs=True)
    guessed = [ids for ids, _ in generate_ids(model, start, settings, num_samples=num_samples, draft=draft)]
    assert torch.equal(torch.stack(guessed, 1), plain)
    assert all(B * T <= ROWS and T <= 1 + AHEAD for B, T in shapes)
    assert max(T for _, T in shapes) > 5
    assert shapes[1] == (num_samples, min(1 + AHEAD, ROWS // num_samples))


@pytest.mark.parametrize(
    "settings",
    [{"temperature": 0}, {"temperature": 2.0, "top_k": 3}, {"top_p": 0.5}, {"min_p": 0.1}],
    ids=str,
)
@pytest.mark.parametrize("num_samples", [1, 5])
def test_guesses_by_a_text_change_no_text(settings: dict[str, Any], num_samples: int) -> None:
    model = model_of(context=24)
    draft = Draft(CHARS.encode("abcdefghijk\n" * 30), CHARS.vocab_size)
    options = {"num_samples": num_samples, "stop": ["kk"], "length": 80, **settings}
    plain = draw(model, "abc", **options)
    passes = widths(model)
    assert draw(model, "abc", draft=draft, **options) == plain
    assert max(passes[1:]) > 1  # tokens after the prompt that one pass checked


def test_texts_that_end_together_leave_from_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that none has to take another's place in the cache."""
    places: list[int] = []
    drop = KVCache.drop
    monkeypatch.setattr(KVCache, "drop", lambda cache, index: places.append(index) or drop(cache, index))
    draw(model_of(), length=5, num_samples=3)
    assert places == [2, 1, 0]


@pytest.mark.parametrize("guesses", [True, False])
def test_a_text_that_has_stopped_leaves_the_others(guesses: bool) -> None:
    model, tokenizer = model_of(context=24, vocab_size=256), ByteTokenizer()
    draft = Draft(tokenizer.encode("abcdefgh" * 30), 256) if guesses else None
    options = {"tokenizer": tokenizer, "length": 40, "num_samples": 6, "temperature": 1.0}
    whole = draw(model, **options)
    stops = [text[10] for text in whole[::2]]
    batches: list[int] = []
    model.token_embedding.register_forward_pre_hook(lambda module, args: batches.append(args[0].size(0)))
    stopped = draw(model, **options, stop=stops, draft=draft)
    assert stopped == [text[: min([text.find(stop) % 1000 for stop in stops])] for text in whole]
    assert len({len(text) for text in stopped}) > 1
    assert batches[0] == 6
    assert batches[-1] < 6


def test_nothing_is_guessed_where_it_cannot_be_used() -> None:
    model, start = model_of(), torch.tensor([1, 2, 3])
    draft = Told(torch.zeros(1, 8), SampleConfig(), errs=False)
    for changes, options in (
        ({}, {"num_samples": MOST_STREAMS + 1}), ({}, {"cache": False}), ({"repetition_penalty": 1.3}, {}),
    ):  # fmt: skip
        settings = SampleConfig(length=8, **changes)
        guessed, plain = (list(generate_ids(model, start, settings, draft=one, **options)) for one in (draft, None))
        assert all(torch.equal(a, b) for (a, _), (b, _) in zip(guessed, plain, strict=True))
    assert draft.asked == 0


def test_nothing_is_guessed_on_a_device_other_than_the_cpu() -> None:
    """On one that every machine has and that computes nothing: there the first token cannot be read."""
    model, draft = model_of().to("meta"), Told(torch.zeros(1, 8), SampleConfig(), errs=False)
    passes = widths(model)
    with pytest.raises(RuntimeError, match="meta"):
        list(generate_ids(model, torch.tensor([1, 2, 3]), SampleConfig(length=8), draft=draft))
    assert passes == [2, 1], "the start of the prompt; its last token, without guesses to check"
    assert draft.asked == 0


@hypothesis.given(context=st.integers(1, 40), prompt=st.integers(1, 100), more=st.integers(0, 200))
def test_the_window_rule(context: int, prompt: int, more: int) -> None:
    """The window is never empty nor too long, never moves back, starts full, and moves by half a context at a time."""
    start, following = (window_start(prompt + more + ahead, prompt, context) for ahead in (0, 1))
    assert 1 <= prompt + more - start <= context
    assert following - start in (0, max(1, context // 2))
    assert window_start(prompt, prompt, context) == max(0, prompt - context)
    if prompt + more <= context:
        assert start == 0


@pytest.mark.parametrize("context", [1, 2, 5, 6])
def test_each_step_sees_the_end_of_the_text_and_the_cache_recomputes_only_a_new_window(context: int) -> None:
    model, prompt = model_of(context=context), torch.arange(9) % CHARS.vocab_size
    inputs: list[Tensor] = []
    model.token_embedding.register_forward_pre_hook(lambda module, args: inputs.append(args[0][0]))
    settings = SampleConfig(length=20)
    drawn = torch.cat([ids for ids, _ in generate_ids(model, prompt, settings, cache=False)])
    text = torch.cat((prompt, drawn))
    assert torch.equal(inputs[0], prompt[-context:])  # of a long prompt, exactly the last `context` tokens
    starts = [window_start(9 + step, 9, context) for step in range(20)]
    for step, seen in enumerate(inputs):
        assert torch.equal(seen, text[starts[step] : 9 + step])
    inputs.clear()
    list(generate_ids(model, prompt, settings, cache=True))
    for step, start in enumerate(starts):
        if (step == 0 or start != starts[step - 1]) and 9 + step - start > 1:
            assert torch.equal(inputs.pop(0), text[start : 9 + step - 1])  # of a new window all but the last
        assert inputs.pop(0).tolist() == [text[9 + step - 1]]
    assert inputs == []


def test_a_prompt_is_read_once_for_all_samples() -> None:
    model, prompt = model_of(context=12), torch.arange(9)
    shapes: list[tuple[int, ...]] = []
    model.token_embedding.register_forward_pre_hook(lambda module, args: shapes.append(tuple(args[0].shape)))
    list(generate_ids(model, prompt, SampleConfig(length=5), num_samples=3))
    assert shapes == [(1, 8), *[(3, 1)] * 4, (3, 6), (3, 1)]  # the last but one reads a new window


# --- what is drawn -----------------------------------------------------------------------------------


def kept(p: list[float], **settings: Any) -> dict[int, float]:
    """The tokens that may be drawn from probabilities p, with their new probabilities."""
    result = probabilities(torch.tensor([p]).log(), torch.tensor([[0]]), SampleConfig(**{"temperature": 1, **settings}))
    assert result.sum().item() == pytest.approx(1)
    return {token: value for token, value in enumerate(result[0].tolist()) if value > 0}


P = [0.1, 0.4, 0.3, 0.2]
TIES = [0.25, 0.25, 0.25, 0.25]


@pytest.mark.parametrize(
    ("settings", "p", "tokens"),
    [
        ({}, P, {0, 1, 2, 3}),
        ({"top_k": 1}, P, {1}),
        ({"top_k": 2}, P, {1, 2}),
        ({"top_k": 4}, P, {0, 1, 2, 3}),
        ({"top_k": 99}, P, {0, 1, 2, 3}),  # more than there are
        ({"top_k": 2}, TIES, {0, 1}),  # exactly k, also among equals
        ({"top_k": 2}, [0.2, 0.3, 0.2, 0.3], {1, 3}),
        ({"top_p": 1e-9}, P, {1}),
        ({"top_p": 0.39}, P, {1}),
        ({"top_p": 0.41}, P, {1, 2}),
        ({"top_p": 0.69}, P, {1, 2}),
        ({"top_p": 0.71}, P, {1, 2, 3}),
        ({"top_p": 0.5}, TIES, {0, 1}),  # reached exactly: no token more
        ({"top_p": 0.51}, TIES, {0, 1, 2}),
        ({"min_p": 0.24}, P, {0, 1, 2, 3}),
        ({"min_p": 0.26}, P, {1, 2, 3}),
        ({"min_p": 0.51}, P, {1, 2}),
        ({"min_p": 1}, P, {1}),
        ({"min_p": 1}, TIES, {0, 1, 2, 3}),
        ({"top_k": 3, "top_p": 0.75}, P, {1, 2}),  # 0.7 of the 0.9 that top-k left: enough
        ({"top_k": 3, "top_p": 0.8}, P, {1, 2, 3}),
        ({"top_p": 0.95, "min_p": 0.6}, P, {1, 2}),
    ],
)
def test_what_each_filter_keeps(settings: dict[str, Any], p: list[float], tokens: set[int]) -> None:
    """Exactly these tokens, with their probabilities in the same proportion as before."""
    total = sum(p[token] for token in tokens)
    assert kept(p, **settings) == pytest.approx({token: p[token] / total for token in tokens})


@pytest.mark.parametrize(
    ("p", "settings", "tokens"),
    [
        (P, {"temperature": 0.5, "top_p": 0.5}, {1}),  # top-p first: 1 and 2
        (P, {"temperature": 2.0, "min_p": 0.6}, {1, 2, 3}),  # min-p first: 1 and 2
        (P, {"top_p": 0.5, "min_p": 0.6}, {1, 2}),  # min-p first: 1
        ([0.4, 0.1, 0.3, 0.2], {"repetition_penalty": 2.0, "top_k": 1}, {2}),  # 0 was seen; top-k first: 0
    ],
)
def test_the_filters_apply_in_the_order_that_is_documented(
    p: list[float], settings: dict[str, Any], tokens: set[int]
) -> None:
    assert set(kept(p, **settings)) == tokens


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_temperature_divides_the_logits(temperature: float) -> None:
    powers = [p ** (1 / temperature) for p in P]
    expected = {token: power / sum(powers) for token, power in enumerate(powers)}
    assert kept(P, temperature=temperature) == pytest.approx(expected)


@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e30])
def test_extreme_temperatures(scale: float) -> None:
    """The coldest is greedy, without overflow even at the smallest number there is; the hottest is uniform."""
    logits, seen = scale * torch.tensor([[-3.0, 1.0, 2.0, 1.9]]), torch.tensor([[0]])
    for temperature in (1e-6, 5e-324):
        cold = probabilities(logits, seen, SampleConfig(temperature=temperature))
        torch.testing.assert_close(cold, torch.tensor([[0.0, 0.0, 1.0, 0.0]], dtype=torch.float64))
    hot = probabilities(logits, seen, SampleConfig(temperature=1e6 * scale))
    torch.testing.assert_close(hot, torch.full((1, 4), 0.25, dtype=torch.float64), atol=1e-5, rtol=0)


FILTERS = [
    *({}, {"temperature": 0.5}, {"temperature": 1.7}, {"top_k": 3}, {"top_p": 0.6}, {"min_p": 0.3}),
    {"top_k": 5, "top_p": 0.9, "min_p": 0.05, "repetition_penalty": 1.3},
]


@pytest.mark.parametrize("settings", FILTERS, ids=str)
def test_draws_follow_the_distribution(settings: dict[str, Any]) -> None:
    """Of any two tokens each has its share to within one draw, for the difference of two Gumbel numbers is logistic."""
    count = 20_000
    logits = torch.randn(1, 12, generator=torch.Generator().manual_seed(3)) * 2
    seen = torch.tensor([[2, 5, 5]])
    config = SampleConfig(**{"temperature": 1.0, **settings})
    expected = probabilities(logits, seen, config)[0]
    even = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    for one, other in itertools.combinations(range(12), 2):
        if not expected[one] + expected[other]:
            continue
        gumbel = torch.full((count, 12), float("-inf"), dtype=torch.float64)  # the others never win
        gumbel[:, one], gumbel[:, other] = even.logit(), 0.0
        drawn = next_token(logits.expand(count, -1), seen.expand(count, -1), config, gumbel)
        share = expected[one] / (expected[one] + expected[other])
        assert abs((drawn == one).sum() - count * share) <= 1.01
        assert ((drawn == one) | (drawn == other)).all()


@pytest.mark.parametrize("settings", FILTERS, ids=str)
def test_draws_by_the_samplers_own_numbers_follow_it_too(settings: dict[str, Any]) -> None:
    """Pearson's chi-square of the tokens that are expected more than five times, and none that is filtered."""
    count = 20_000
    logits = torch.randn(1, 12, generator=torch.Generator().manual_seed(3)) * 2
    seen = torch.tensor([[2, 5, 5]])
    config = SampleConfig(**{"temperature": 1.0, **settings})
    expected = count * probabilities(logits, seen, config)[0]
    gumbel = _GumbelNumbers(1, 0, 12, 1).of(0, count)
    drawn = next_token(logits.expand(count, -1), seen.expand(count, -1), config, gumbel).bincount(minlength=12)
    likely = expected > 5
    assert drawn[expected == 0].sum() == 0
    statistic = ((drawn - expected).square() / expected)[likely].sum().item()
    assert statistic < 31.3  # the 0.999 quantile with 11 degrees of freedom


@pytest.mark.parametrize("at_once", [0, 11, 200])
def test_random_numbers_do_not_depend_on_how_they_are_asked_for(at_once: int) -> None:
    """Each stream has its own, and they are those of the standard Gumbel distribution."""
    whole = torch.stack([_GumbelNumbers(7, stream, 11, 0).of(0, 500) for stream in range(3)])  # (3, 500, 11)
    parts = [_GumbelNumbers(7, stream, 11, at_once) for stream in range(3)]
    at = 0
    for moved, count in ((1, 1), (1, 5), (3, 4), (9, 9), (2, 40), (40, 40), (1, 7)):
        assert torch.equal(torch.stack([stream.of(at, count) for stream in parts]), whole[:, at : at + count])
        at += moved
    assert whole.mean().item() == pytest.approx(0.5772, abs=0.03)
    assert whole.var().item() == pytest.approx(math.pi**2 / 6, abs=0.08)
    assert len(whole.unique()) == whole.numel()


def test_samples_follow_the_models_distribution() -> None:
    """From a real model with its real random numbers: Pearson's chi-square of 4000 first characters."""
    model, prompt, count = model_of(), torch.tensor([3, 1, 4]), 4000
    settings = SampleConfig(length=1, temperature=0.8)
    (drawn, _), *_ = generate_ids(model, prompt, settings, num_samples=count)
    with torch.no_grad():
        expected = count * (model(prompt[None])[0, -1] / 0.8).softmax(-1)
    assert expected.min() > 5
    statistic = ((drawn.bincount(minlength=CHARS.vocab_size) - expected).square() / expected).sum().item()
    assert statistic < 31.3  # the 0.999 quantile with 11 degrees of freedom


@hypothesis.given(
    logits=st.lists(st.floats(-60, 60, width=32) | st.sampled_from([-1e38, 1e38, 0.0]), min_size=1, max_size=9),
    temperature=st.floats(0, 1e9, exclude_min=True),
    top_k=st.integers(0, 10),
    top_p=st.floats(1e-300, 1),
    min_p=st.floats(0, 1),
    penalty=st.floats(1e-3, 1e3),
)
def test_something_is_left_and_nothing_else_is_drawn(
    logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float, penalty: float
) -> None:
    """No setting filters everything, and the largest number of all never draws a filtered token."""
    filters = {"top_k": top_k, "top_p": top_p, "min_p": min_p, "repetition_penalty": penalty}
    config = SampleConfig(temperature=temperature, **filters)
    row, seen = torch.tensor([logits]), torch.zeros(1, 1, dtype=torch.long)
    p = probabilities(row, seen, config)[0]
    assert p.sum().item() == pytest.approx(1)
    unfiltered = probabilities(row, seen, SampleConfig(temperature=temperature, repetition_penalty=penalty))[0]
    assert unfiltered[p.argmax()] == unfiltered.max(), "the likeliest stays, or one as likely"
    n = len(logits)
    least, largest = -math.log(53 * math.log(2)), -math.log(LEAST)
    gumbel = torch.full((n, n), least, dtype=torch.float64).fill_diagonal_(largest)
    drawn = next_token(row.expand(n, -1), seen.expand(n, -1), config, gumbel)
    assert (p[drawn] > 0).all()


@pytest.mark.parametrize(("penalty", "sign", "drawn"), [(1e-310, 1, {1, 2}), (1e308, -1, {0})])
def test_a_penalty_beyond_all_numbers_draws_what_it_should(penalty: float, sign: int, drawn: set[int]) -> None:
    """Infinite differences once drew the first token for ever: here one of those that were seen, or the only other."""
    logits = sign * torch.tensor([[1.0, 2.0, 30.0]])
    settings = SampleConfig(repetition_penalty=penalty, top_k=1)
    seen = torch.tensor([[1, 2]])
    assert probabilities(logits, seen, settings).sum().item() == pytest.approx(1)
    assert int(next_token(logits, seen, settings, torch.zeros(1, 3))) in drawn


@pytest.mark.parametrize("penalty", [0.5, 1.0, 1.2, 3.0])
def test_the_repetition_penalty(penalty: float) -> None:
    """What was seen, however often, is divided by the penalty where positive and multiplied where negative."""
    logits, seen = torch.tensor([[2.0, -1.0, 0.5, 0.0], [2.0, -1.0, 0.5, 0.0]]), torch.tensor([[0, 1, 0], [3, 2, 3]])
    expected = [[2.0 / penalty, -1.0 * penalty, 0.5, 0.0], [2.0, -1.0, 0.5 / penalty, 0.0]]
    torch.testing.assert_close(penalized(logits, seen, penalty), torch.tensor(expected))
    greedy = SampleConfig(temperature=0, repetition_penalty=penalty)
    best = [row.index(max(row)) for row in expected]
    assert next_token(logits, seen, greedy, torch.zeros(2, 4)).tolist() == best


def test_greedy_takes_the_likeliest_whatever_the_seed_and_filters() -> None:
    model, ids = model_of(), [3, 1, 4]
    settings = {"temperature": 0, "length": 3}
    first, second = (
        torch.cat([d for d, _ in generate_ids(model, torch.tensor(ids), SampleConfig(**settings, **more))]).tolist()
        for more in ({"seed": 1}, {"seed": 2, "top_k": 3, "top_p": 0.5, "min_p": 0.2})
    )
    for _ in range(3):
        with torch.no_grad():
            ids.append(int(model(torch.tensor([ids]))[0, -1].argmax()))
    assert first == second == ids[3:]


def test_logprobs_are_the_models_own() -> None:
    """log_softmax of the logits: no temperature, no filter, no penalty."""
    model, prompt = model_of(), CHARS.encode("ab").tolist()
    settings = SampleConfig(length=4, temperature=0.3, top_k=5, repetition_penalty=1.5)
    pieces = list(generate(model, CHARS, "ab", settings))
    ids = prompt + CHARS.encode("".join(piece.text for piece in pieces)).tolist()
    with torch.no_grad():
        expected = model(torch.tensor([ids]))[0].log_softmax(-1)
    assert [p.logprob for p in pieces] == pytest.approx([expected[i, ids[i + 1]].item() for i in range(1, 5)], abs=1e-5)


# --- seeds and samples -------------------------------------------------------------------------------


def test_a_sample_depends_on_its_seed_and_number_alone() -> None:
    """Not on how many are drawn beside it, nor on how long they get, nor on torch's own generator."""
    model = model_of()
    texts = draw(model, num_samples=4, length=30, seed=5)
    torch.manual_seed(99)
    state = torch.get_rng_state()
    assert draw(model, num_samples=2, length=30, seed=5) == texts[:2]
    assert draw(model, num_samples=4, length=7, seed=5) == [text[:7] for text in texts]
    assert torch.equal(torch.get_rng_state(), state)
    assert len({*texts, *draw(model, num_samples=4, length=30, seed=6)}) == 8


def test_text_comes_as_it_is_drawn() -> None:
    model = model_of()
    seen = widths(model)
    pieces = generate(model, CHARS, "abc", SampleConfig(length=50))
    assert seen == []
    next(pieces)
    next(pieces)
    assert seen == [2, 1, 1]  # the prompt but for its last character, and what each is drawn after
    assert len(list(pieces)) == 48


@pytest.mark.parametrize("cache", [True, False])
def test_dropout_is_off_and_comes_back(cache: bool) -> None:
    """A sample in the middle of training is what the saved model would write, and training goes on as before."""
    model = model_of(dropout=0.5).train()
    pieces = generate(model, CHARS, "a", SampleConfig(length=20), cache=cache)
    text = next(pieces).text
    assert model.training
    text += "".join(piece.text for piece in pieces)
    assert all(module.training for module in model.modules())
    assert [text] == draw(model_of(), length=20)


# --- prompts -----------------------------------------------------------------------------------------


def test_an_empty_prompt_is_a_line_end() -> None:
    model = model_of()
    expected = draw(model, "\n", length=20)
    assert draw(model, "", length=20) == expected
    assert draw(model, "???", length=20, unknown="skip") == expected  # empty once the unknown is left out
    no_line_end = CharTokenizer("abc")
    assert len(draw(model_of(vocab_size=3), "", no_line_end, length=20)[0]) == 20


def test_unknown_characters_in_the_prompt() -> None:
    model = model_of()
    with pytest.raises(UserError, match="outside the vocabulary: 'Z'") as error:
        draw(model, "abZc")
    assert "\n" not in str(error.value)
    assert draw(model, "abZc", unknown="skip") == draw(model, "abc")
    assert draw(model, "abÁc", unknown="replace") == draw(model, "abac")


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_broken_model_is_an_error_of_one_line(value: float) -> None:
    model = model_of()
    with torch.no_grad():
        model.norm.weight[0] = value
    for options in ({}, {"temperature": 0}, {"cache": False}):
        with pytest.raises(UserError, match="not finite") as error:
            draw(model, **options)
        assert "\n" not in str(error.value)


# --- stop strings and bytes --------------------------------------------------------------------------


def until(text: str, stop: list[str]) -> str:
    """`text` up to the stop string that is complete first, and of several complete at once the longest."""
    for end in range(len(text) + 1):
        starts = [end - len(s) for s in stop if s and text[:end].endswith(s)]
        if starts:
            return text[: min(starts)]
    return text


def stream(tokens: bytes, stop: tuple[str, ...] = (), each: float = -1.0) -> list[Piece]:
    """What one sample yields for these bytes, each of the log-probability `each`."""
    one = _Characters(0, ByteTokenizer(), stop)
    return [*itertools.chain.from_iterable(one.push(token, each) for token in tokens), *one.flush()]


@hypothesis.given(text=st.text("ab", max_size=20), stop=st.lists(st.text("ab", max_size=4), max_size=3))
@hypothesis.example(text="aab", stop=["ab"])  # a false start overlaps the real one
@hypothesis.example(text="abc", stop=["ab", "abc"])  # one begins the other
@hypothesis.example(text="abc", stop=["abc", "bc"])  # two end together
@hypothesis.example(text="xab", stop=["abc"])  # held back, never completed
@hypothesis.example(text="abc", stop=[""])
def test_a_sample_ends_before_the_first_stop_string(text: str, stop: list[str]) -> None:
    """Split over steps as they are, overlapping, several, inside one another; what was only held back comes out."""
    assert "".join(piece.text for piece in stream(text.encode(), tuple(stop))) == until(text, stop)


def test_text_is_held_back_no_longer_than_it_may_become_a_stop_string() -> None:
    one = _Characters(0, ByteTokenizer(), ["bcd"])
    released = ["".join(piece.text for piece in one.push(token, 0.0)) for token in b"abcbce"]
    assert released == ["a", "", "", "bc", "", "bce"]


def test_each_sample_stops_for_itself_and_all_together_stop_the_work() -> None:
    model = model_of(vocab_size=3)
    tokenizer, options = CharTokenizer("ab\n"), {"num_samples": 3, "length": 60, "temperature": 1.0}
    whole = draw(model, "a", tokenizer, **options)
    stop = ["\n\n", "abb"]
    expected = [until(text, stop) for text in whole]
    assert len({len(text) for text in expected}) > 1
    seen = widths(model)
    assert draw(model, "a", tokenizer, stop=stop, **options) == expected
    assert len(seen) < 60
    assert draw(model, "a", tokenizer, stop=["never"], **options) == whole


@hypothesis.given(data=st.binary(max_size=12) | st.text(max_size=6).map(lambda text: text.encode("utf-8", "replace")))
@hypothesis.example(data=b"\xe2A")  # a byte that ends one character, malformed, and is the next
@hypothesis.example(data=b"\xf0\xf0\x9f\x98\x80")
def test_bytes_come_out_as_characters(data: bytes) -> None:
    """One character a piece, as soon as it is whole; malformed bytes are U+FFFD; no log-probability is lost."""
    pieces = stream(data + b"\n")
    assert "".join(piece.text for piece in pieces) == (data + b"\n").decode("utf-8", "replace")
    assert all(len(piece.text) == 1 for piece in pieces)
    assert sum(piece.logprob for piece in pieces) == -len(data) - 1


def test_characters_of_several_bytes() -> None:
    pieces = stream("é€😀".encode(), each=-0.5)
    assert pieces == [Piece(0, "é", -1.0), Piece(0, "€", -1.5), Piece(0, "😀", -2.0)]
    assert stream("a€".encode()[:-1]) == [Piece(0, "a", -1.0)]  # the rest never became a character
    assert "".join(p.text for p in stream("x\u20acend".encode(), stop=("€",))) == "x"
    # A stop string behind a malformed byte that the same step reveals
    assert "".join(p.text for p in stream(b"a\xe2END", stop=("END",))) == "a\ufffd"


def test_the_byte_tokenizer_draws_its_length_in_bytes() -> None:
    model, tokenizer, settings = model_of(vocab_size=256), ByteTokenizer(), SampleConfig(length=40, temperature=1.0)
    prompt = torch.tensor(tokenizer.encode("é").tolist())
    ids = [int(drawn) for drawn, _ in generate_ids(model, prompt, settings)]
    pieces = list(generate(model, tokenizer, "é", settings))
    text = "".join(piece.text for piece in pieces)
    assert len(ids) == 40
    assert tokenizer.decode(ids) in (text, text + "\ufffd")
