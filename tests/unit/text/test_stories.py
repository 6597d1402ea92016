"""The built-in stories: fixed for all time, and true to their grammar."""

import hashlib
import re

import pytest

from minigpt.text.stories import BOYS, GIRLS, MAX_SEED, Choices, links, stories


def text(length: int, seed: int = 1) -> str:
    return "".join(stories(length, seed))


def test_the_text_never_changes() -> None:
    """If this fails, runs on `builtin:stories` cannot be resumed, and recorded losses cannot be compared."""
    hashes = [hashlib.sha256(text(*key).encode()).hexdigest() for key in ((1_000_000, 1), (1000, MAX_SEED))]
    assert hashes == [
        "3768bd62898d9165b647dd3a4648e26a8970349c22a0c5e0a651f76c2078410a",
        "be6076e69669aab4ae9e49fb6a4f986a923e26d075b61d54b26252f0ab04c3fc",
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


def test_a_pronoun_means_the_only_girl_or_boy_of_the_story() -> None:
    names, pronoun = "|".join((*GIRLS, *BOYS)), "She|her|He|him"
    for story in text(50_000).split("\n\n")[:-1]:
        girl, boy = sorted(set(re.findall(rf"\b(?:{names})\b", story)))  # A to L, and M to Z
        assert (girl in GIRLS, boy in BOYS) == (True, True), story
        for word, name in re.findall(rf"\b({pronoun})\b(?:(?!{pronoun}).)*?\b({names})\b", story):
            assert name == (girl if word in ("She", "her") else boy), story


def test_places_and_songs_repeat() -> None:
    for story in text(50_000).split("\n\n")[:-1]:
        assert len(set(re.findall(r"(?:from|to|in) ([A-Z]\w+)", story))) == 2, story
        assert re.search(r'sing.*: "(.+), \1\."$', story), story


def test_links_lead_from_a_pronoun_and_a_copy_to_what_they_repeat() -> None:
    story = 'Irma from Rusana.\nYann is here.\nHe says: "I am Yann from Rusana."\n\nHe says: "I am Yann from Rusana.'
    found = list(links(story))
    (pronoun,) = (link for link in found if link.kind == "pronoun")
    assert story[pronoun.query :].startswith(' Yann from Rusana."')
    assert ["".join(story[key] for key in keys) for keys in (pronoun.keys, pronoun.rivals)] == ["Yann", "Irma"]
    copies = [(story[link.query], *(story[key] for key in link.keys)) for link in found if link.kind == "copy"]
    assert copies == [("R", "u"), ("u", "s"), ("s", "a"), ("a", "n"), ("n", "a")], "the next story starts anew"


def test_the_next_character_follows_from_the_links() -> None:
    """At each link the text continues as the earlier words do, from wherever the part of the text starts."""
    part = text(20_000)[137:]
    found = list(links(part))
    assert {link.kind for link in found} == {"copy", "pronoun"}
    for link in found:
        assert max(link.keys) < link.query
        following = {part[key] for key in link.keys} if link.kind == "copy" else {part[link.keys[0]]}
        assert following == {part[link.query + 1]}
        assert part[link.query + 1] not in {part[rival] for rival in link.rivals}
