"""How much of a text is copied from another."""

import random

import pytest

from minigpt.interpret import copied
from minigpt.interpret.copied import copied_shares, excerpts, match_lengths

TRAINING = "The quick brown fox jumps over the lazy dog. A second sentence stands here."


def test_what_is_copied_partly_copied_and_new() -> None:
    texts = ["brown fox jumps", "XYZ", "lazy dog!quick", "", "\ud800", "he quick over"]
    # "he quick" and "quick brown" overlap in the training text, but "over" does not follow.
    expected = [[15] * 15, [0, 0, 0], [8] * 8 + [0] + [5] * 5, [], [0], [9] * 9 + [5] * 4]
    assert match_lengths(texts, TRAINING) == expected
    assert match_lengths(texts, "") == [[0] * len(text) for text in texts]


@pytest.mark.parametrize(("most", "block"), [(copied.MOST, copied.BLOCK), (10, 7)])
def test_lengths_equal_those_of_trying_every_part(monkeypatch: pytest.MonkeyPatch, most: int, block: int) -> None:
    monkeypatch.setattr(copied, "MOST", most)
    monkeypatch.setattr(copied, "BLOCK", block)
    draw = random.Random(0)
    for _ in range(50):
        training = "".join(draw.choices("abc", k=60))
        texts = ["".join(draw.choices("abcd", k=draw.randint(0, 20))) for _ in range(3)]
        expected = [[0] * len(text) for text in texts]
        for text, lengths in zip(texts, expected, strict=True):
            for start in range(len(text)):
                for end in range(start + 1, len(text) + 1):
                    if text[start:end] in training:
                        lengths[start:end] = [max(end - start, known) for known in lengths[start:end]]
        assert match_lengths(texts, training) == expected


def test_shares_are_of_the_characters_of_all_texts() -> None:
    lengths = match_lengths(["The quick brown fox j", "XYZ", "second sen"], TRAINING)
    assert copied_shares(lengths) == pytest.approx({10: 31 / 34, 20: 21 / 34, 40: 0})
    assert copied_shares([[]]) == {10: 0, 20: 0, 40: 0}


def test_excerpts_have_the_length_of_the_samples_and_do_not_overlap() -> None:
    text = "".join(map(chr, range(256, 256 + 3000)))
    assert excerpts(text, [500, 300]) == [text[start : start + 400] for start in (0, 650, 1300, 1950, 2600)]
    assert excerpts(text[:1000], [400]) == [text[:400], text[600:1000]]
    assert excerpts("short", [400]) == ["short"]
    assert excerpts("", [0]) == [""]
