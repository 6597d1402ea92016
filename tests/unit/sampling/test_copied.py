"""How much of a text is copied from another."""

import random

import pytest

from minigpt.sampling.copied import copied_shares, excerpts, match_lengths

TRAINING = "The quick brown fox jumps over the lazy dog. A second sentence stands here."


def test_what_is_copied_partly_copied_and_new() -> None:
    assert match_lengths("brown fox jumps", TRAINING) == [15] * 15
    assert match_lengths("XYZ", TRAINING) == [0, 0, 0]
    assert match_lengths("lazy dog!quick", TRAINING) == [8] * 8 + [0] + [5] * 5
    assert match_lengths("", TRAINING) == []
    # "he quick" and "quick brown" overlap in the training text, but "over" does not follow.
    assert match_lengths("he quick over", TRAINING) == [9] * 8 + [9] + [5] * 4


def test_lengths_equal_those_of_trying_every_part() -> None:
    draw = random.Random(0)
    for _ in range(100):
        training = "".join(draw.choices("abc", k=60))
        text = "".join(draw.choices("abcd", k=20))
        expected = [0] * len(text)
        for start in range(len(text)):
            for end in range(start + 1, len(text) + 1):
                if text[start:end] in training:
                    expected[start:end] = [max(end - start, known) for known in expected[start:end]]
        assert match_lengths(text, training) == expected


def test_shares_are_of_the_characters_of_all_texts() -> None:
    lengths = [match_lengths(text, TRAINING) for text in ("The quick brown fox j", "XYZ", "second sen")]
    assert copied_shares(lengths) == pytest.approx({10: 31 / 34, 20: 21 / 34, 40: 0})
    assert copied_shares([[]]) == {10: 0, 20: 0, 40: 0}


def test_excerpts_have_the_length_of_the_samples_and_do_not_overlap() -> None:
    text = "".join(map(chr, range(256, 256 + 3000)))
    assert excerpts(text, [500, 300]) == [text[start : start + 400] for start in (0, 650, 1300, 1950, 2600)]
    assert excerpts(text[:1000], [400]) == [text[:400], text[600:1000]]
    assert excerpts("short", [400]) == ["short"]
    assert excerpts("", [0]) == [""]
