"""What guesses ahead goes by how often something followed in the text; what comes of it is tested with the sampler."""

from collections import Counter

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from minigpt.draft import ENOUGH, LONGEST, MOST, Draft


def ids(text: str) -> np.ndarray:
    return np.frombuffer(text.encode(), dtype=np.uint8)


def guess(draft: Draft, recent: str, *numbers: float) -> str:
    return bytes(draft.guess(list(recent.encode()), list(numbers))).decode()


def test_a_token_is_guessed_by_the_same_rule_as_it_is_drawn() -> None:
    """Of the numbers in [0, 1), in the tokens' order, each token has the share that it has after these characters."""
    text = "wxyza" + "wxyzc" * 5 + "wxyzb" * 4
    draft = Draft(ids(text), 256)
    found = [guess(draft, "wxyz", (number + 0.5) / 100) for number in range(100)]
    assert found == sorted(found)
    assert Counter(found) == {"a": 10, "b": 40, "c": 50}
    assert guess(draft, "wxyz", 0.0) == "a"
    assert guess(draft, "wxyz", 1 - 2**-24) == "c"


def test_the_longest_context_with_enough_places_decides() -> None:
    seldom, often = "abcde1" * (ENOUGH - 1), "..xde2" * 30
    assert guess(Draft(ids(seldom + often), 256), "abcde", 0.5) == "2"
    assert guess(Draft(ids(seldom + "abcde1" + often), 256), "abcde", 0.5) == "1"
    assert guess(Draft(ids(often), 256), "de", 0.5) == "2"


def test_guesses_go_on_from_each_other_and_end_where_the_text_has_nothing() -> None:
    draft = Draft(ids("abcdefghij" * 20 + "Z"), 256)
    assert guess(draft, "abc", *[0.5] * 6) == "defghi"
    assert guess(draft, "jZ", 0.5, 0.5) == guess(draft, "a", 0.5) == guess(draft, "", 0.5) == ""
    assert guess(draft, "ab") == ""


def test_only_the_start_of_a_long_text_is_looked_at() -> None:
    text = np.ones(MOST + 1000, dtype=np.uint8)
    text[MOST:] = 2
    draft = Draft(text, 3)
    assert draft.guess([1, 1], [0.999999]) == [1]
    assert draft.guess([2, 2], [0.5]) == []


@pytest.mark.parametrize("vocab_size", [1, 2, 255, 256, 4095, 4096, 32_767, 32_768, 65_535, 65_536, 1_114_112])
def test_any_vocabulary_fits(vocab_size: int) -> None:
    """The largest ids neither overflow nor are taken for others."""
    largest = vocab_size - 1
    draft = Draft(np.array([largest, 0] * 30), vocab_size)
    assert all((ngrams >= 0).all() for ngrams in draft.ngrams.values())
    assert draft.guess([0, largest] * 3, [0.5] * 3) == [0, largest, 0]


@hypothesis.given(
    text=st.lists(st.integers(0, 5), max_size=200),
    recent=st.lists(st.integers(0, 5), max_size=2 * LONGEST),
    numbers=st.lists(st.floats(0, 1, exclude_max=True, width=32), max_size=8),
)
def test_of_any_text_it_guesses_tokens_that_stand_in_it(
    text: list[int], recent: list[int], numbers: list[float]
) -> None:
    guesses = Draft(np.array(text, dtype=np.uint8), 6).guess(recent, numbers)
    assert len(guesses) <= len(numbers)
    assert set(guesses) <= set(text)
