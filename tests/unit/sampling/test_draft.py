"""What guesses ahead goes by how often something followed in the text; what comes of it is tested with the sampler."""

import operator

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import torch

from minigpt.config.schema import SampleConfig
from minigpt.sampling.draft import ENOUGH, LONGEST, MOST, ORDERS, Draft
from minigpt.sampling.generate import next_token


def ids(text: str) -> np.ndarray:
    return np.frombuffer(text.encode(), dtype=np.uint8)


def numbers(count: int, vocab_size: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).gumbel(size=(count, vocab_size))


def guess(draft: Draft, recent: str, count: int = 1, temperature: float = 0.0, seed: int = 0) -> str:
    """Guess `count` characters; at temperature 0 whatever the numbers."""
    return bytes(draft.guess(list(recent.encode()), numbers(count, 256, seed), temperature)).decode()


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_a_token_is_guessed_by_the_same_rule_as_it_is_drawn(temperature: float) -> None:
    """By the numbers that would draw it from a model that holds each as likely as it stands after these characters."""
    text = "wxyza" + "wxyzc" * 5 + "wxyzb" * 4
    draft, count = Draft(ids(text), 256), 2000
    logits = torch.full((count, 256), float("-inf"))
    logits[:, ids("abc").tolist()] = torch.tensor([1.0, 4.0, 5.0]).log()
    gumbel = numbers(count, 256)
    drawn = next_token(logits, torch.zeros(count, 1), SampleConfig(temperature=temperature), torch.from_numpy(gumbel))
    found = [draft.guess(list(b"wxyz"), row[None], temperature)[0] for row in gumbel]
    assert found == drawn.tolist()
    assert set(found) == set(b"abc")
    assert guess(draft, "wxyz", temperature=0) == "c"


def test_the_longest_context_with_enough_places_decides() -> None:
    seldom, often = "abcde1" * (ENOUGH - 1), "..xde2" * 30
    assert guess(Draft(ids(seldom + often), 256), "abcde") == "2"
    assert guess(Draft(ids(seldom + "abcde1" + often), 256), "abcde") == "1"
    assert guess(Draft(ids(often), 256), "de") == "2"


def test_guesses_go_on_from_each_other_and_end_where_the_text_has_nothing() -> None:
    draft = Draft(ids("abcdefghij" * 20 + "Z"), 256)
    assert guess(draft, "abc", 6) == "defghi"
    assert guess(draft, "jZ", 2) == guess(draft, "a") == guess(draft, "") == ""
    assert guess(draft, "ab", 0) == ""


def test_only_the_start_of_a_long_text_is_looked_at() -> None:
    text = np.ones(MOST + 1000, dtype=np.uint8)
    text[MOST:] = 2
    draft = Draft(text, 3)
    assert draft.guess([1, 1], numbers(1, 3), 1.0) == [1]
    assert draft.guess([2, 2], numbers(1, 3), 1.0) == []


@pytest.mark.parametrize("vocab_size", [1, 2, 255, 256, 4095, 4096, 32_767, 32_768, 65_535, 65_536, 1_114_112])
def test_any_vocabulary_fits(vocab_size: int) -> None:
    """The largest ids neither overflow nor are taken for others."""
    largest = vocab_size - 1
    draft = Draft(np.array([largest, 0] * 30), vocab_size)
    assert all((ngrams.codes >= 0).all() for ngrams in draft.ngrams.values())
    assert draft.guess([0, largest] * 3, numbers(3, vocab_size), 1.0) == [0, largest, 0]


def following(text: list[int], before: list[int]) -> set[int]:
    """What stands after the last few tokens of `before`, in a text where they stand often enough."""
    for order in ORDERS:
        places = [at for at in range(order, len(text)) if text[at - order : at] == before[-order:]]
        if len(places) >= ENOUGH:
            return {text[at] for at in places}
    return set()


@hypothesis.given(
    text=st.lists(st.integers(0, 5), max_size=200)
    | st.builds(operator.mul, st.lists(st.integers(0, 5), max_size=20), st.integers(1, 2 * ENOUGH)),
    recent=st.lists(st.integers(0, 5), max_size=2 * LONGEST),
    count=st.integers(0, 8),
    temperature=st.floats(0, allow_infinity=False),
)
@hypothesis.example(text=[0, 1, 2, 0, 3] * ENOUGH, recent=[3, 0, 1], count=8, temperature=1.0)
def test_of_any_text_it_guesses_tokens_that_stand_in_it(
    text: list[int], recent: list[int], count: int, temperature: float
) -> None:
    """After the same tokens, and as many as are asked for or until nothing stands there."""
    guesses = Draft(np.array(text, dtype=np.uint8), 6).guess(recent, numbers(count, 6), temperature)
    assert len(guesses) <= count
    assert set(guesses) <= set(text)
    for at, guess in enumerate(guesses):
        assert guess in following(text, recent + guesses[:at])
    assert len(guesses) == count or not following(text, recent + guesses)
