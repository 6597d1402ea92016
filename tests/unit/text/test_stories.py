"""The built-in stories: fixed for all time, and true to their grammar."""

import hashlib
import re

import pytest

from minigpt.text.stories import BOYS, GIRLS, MAX_SEED, Choices, stories


def text(length: int, seed: int = 1) -> str:
    return "".join(stories(length, seed))


def test_the_text_never_changes() -> None:
    """If this fails, runs on `builtin:stories` cannot be resumed, and recorded losses cannot be compared."""
    hashes = [hashlib.sha256(text(*key).encode()).hexdigest() for key in ((1_000_000, 1), (1000, MAX_SEED))]
    assert hashes == [
        "1da724611505e3d4092a0ab16c7fd02d05b3a1ee6d0b184b75526ecdda1952a3",
        "19a27a7d33b1b49f2bf5888cd0c1b9021c6c52de701a0763dc473ebf358e9ba8",
    ]


def test_the_choices_are_those_of_splitmix64() -> None:
    choices = Choices(1234567)  # https://rosettacode.org/wiki/Pseudo-random_numbers/Splitmix64
    assert [choices.below(1 << 64) for _ in range(3)] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
    ]


@pytest.mark.parametrize("length", [1, 250, 9999])
def test_a_shorter_text_is_the_start_of_a_longer_one(length: int) -> None:
    assert text(length) == text(10_000)[:length]


def test_a_long_text_comes_in_small_parts() -> None:
    parts = stories(1 << 60, seed=1)
    assert max(len(next(parts)) for _ in range(1000)) < 1000


def test_a_story_repeats_what_it_introduces() -> None:
    """A pronoun and the name after it belong to the same person, and only the song is new after the introduction."""
    for story in text(50_000).split("\n\n")[:-1]:
        ((girl,), (boy,)) = (set(re.findall(rf"\b(?:{'|'.join(names)})\b", story)) for names in (GIRLS, BOYS))
        home = dict(re.findall(r"(\w+)(?: has a \w+ \w+\.\n\w+ comes)? from (\w+)", story)[:2])
        assert set(home) == {girl, boy}, story
        for pronoun, name, place in re.findall(r"(She|He) (?:says: \"I am|is) (\w+) from (\w+)", story):
            assert (name, place) == ((girl, home[girl]) if pronoun == "She" else (boy, home[boy])), story
        for speaker, friend in re.findall(r", (\w+),\" says (\w+)", story):
            assert {speaker, friend} == {girl, boy}
        first, second = re.search(r'sing.*: "(.+), (.+)\."$', story).groups()
        assert first == second
