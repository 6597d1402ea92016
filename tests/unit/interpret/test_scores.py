"""Scores of heads that are known: set by hand, uniform, or the identity."""

import math

import pytest
import torch

from minigpt.interpret.excerpt import characters
from minigpt.interpret.extract import Activations
from minigpt.interpret.scores import (
    PATTERNS,
    are_letters,
    follows,
    head_scores,
    pattern_keys,
)
from minigpt.text.tokenizer import ByteTokenizer, CharTokenizer


def test_known_heads_have_known_scores(by_hand: Activations, text: str) -> None:
    scores = head_scores(by_hand.weights, list(text))
    value = {name: score.values for name, score in scores.items()}
    assert value["previous"][0, 0] == pytest.approx(1, abs=1e-6)
    assert value["first"][0, 2] == pytest.approx(1, abs=1e-6)
    assert value["self"][0, 3] == pytest.approx(1, abs=1e-6)
    assert value["induction"][1, 0] == pytest.approx(1, abs=1e-6)
    for name, score in scores.items():  # head 0.1 is uniform
        if not math.isnan(score.uniform):
            assert score.values[0, 1] == pytest.approx(score.uniform, abs=1e-6), name
    assert value["distance"][0, 0] == pytest.approx(1, abs=1e-6)
    assert value["distance"][0, 2] == pytest.approx(8, abs=1e-6)  # the mean of 1 to 15
    assert value["entropy"][0, 0] == pytest.approx(0, abs=1e-6)


def test_baselines_are_the_scores_of_uniform_attention() -> None:
    scores = head_scores(torch.eye(4).expand(1, 1, 4, 4), list("ab\na"))
    assert scores["previous"].uniform == pytest.approx((1 / 2 + 1 / 3 + 1 / 4) / 3)
    assert scores["same"].uniform == pytest.approx(1 / 4)  # only the last character repeats one
    assert scores["induction"].uniform == pytest.approx(1 / 4)
    assert scores["entropy"].uniform == pytest.approx((math.log(2) + math.log(3) + math.log(4)) / 3)
    assert scores["distance"].uniform == pytest.approx((0.5 + 1 + 1.5) / 3)


def test_patterns_have_the_right_keys() -> None:
    keys = {name: found.nonzero().tolist() for name, found in pattern_keys(list("ab cb\nx")).items()}
    assert keys["same"] == [[4, 1]]
    assert keys["induction"] == [[4, 2]]
    assert keys["word"] == [[1, 0], [4, 3]]
    assert keys["line"] == [[1, 0], [2, 0], [3, 0], [4, 0]]
    assert keys["previous"] == [[t, t - 1] for t in range(1, 7)]


@pytest.mark.parametrize("words", ["हिन्दी भाषा", "cafe\u0301s nai\u0308ve"])
def test_combining_marks_belong_to_their_word(words: str) -> None:
    starts, space = pattern_keys(list(words))["word"], words.index(" ")
    for position in range(1, len(words)):
        start = 0 if position < space else space + 1
        expected = [start] if position not in (space, start) else []
        assert starts[position].nonzero().flatten().tolist() == expected


def test_bytes_of_a_letter_belong_to_its_word() -> None:
    keys = pattern_keys(["c", "a", "f", "\\xC3", "\\xA9", " "])["word"].nonzero().tolist()
    assert keys == [[1, 0], [2, 0], [3, 0], [4, 0]]
    text = "“Да” — да。é\ufffd"
    tokens = characters(ByteTokenizer(), ByteTokenizer().encode(text))
    letters = [c.isalpha() for c in text for _ in c.encode()]
    assert are_letters(tokens) == letters
    assert are_letters(tokens[1:-1]) == letters[1:-1], "cut in a character"
    assert are_letters(["\\xD0", "\\xB4", "\\xD0"]) == [True, True, False]


@pytest.mark.parametrize(
    ("text", "has_words"),
    [
        ("They sing in Maporo:\n", True),
        ("Учёный шёл домой — и молчал.", True),
        ("    def __init__(self):\n        self.name = name\n", True),
        ("北京的冬天很冷。他说今天要下雪了。\n", False),
        ("他用 Python 写程序。北京的冬天很冷，今天要下雪了，大家都不出门。\n", False),
        ("ACGTTGCA\nTTGACA", False),
    ],
)
@pytest.mark.parametrize("is_byte", [False, True])
def test_only_a_text_with_spaces_has_words(text: str, has_words: bool, is_byte: bool) -> None:
    tokenizer = ByteTokenizer() if is_byte else CharTokenizer("".join(sorted({*text})))
    keys = pattern_keys(characters(tokenizer, tokenizer.encode(text)))
    assert bool(keys["word"].any()) == has_words
    assert keys["line"].any()


def test_a_head_follows_a_pattern_that_gets_a_share_and_more_than_the_baseline() -> None:
    scores = ((0.39, 0.0), (0.41, 0.0), (0.9, 0.76), (0.9, 0.74))
    assert [follows(*score) for score in scores] == [False, True, False, True]


def test_induction_has_earlier_keys_only() -> None:
    assert pattern_keys(list("aab"))["induction"].nonzero().tolist() == []
    assert pattern_keys(list("aaba"))["induction"].nonzero().tolist() == [[3, 1], [3, 2]]


@pytest.mark.parametrize("text", ["a", "\n", "aaaa", "ab"])
def test_scores_without_keys_are_nan(text: str) -> None:
    T = len(text)
    scores = head_scores(torch.ones(2, 2, T, T).tril() / torch.arange(1, T + 1)[:, None], list(text))
    assert scores.keys() == PATTERNS.keys() | {"distance", "entropy"}
    if T == 1:
        assert all(math.isnan(score.uniform) for score in scores.values())
    assert all(score.values.shape == (2, 2) for score in scores.values())
