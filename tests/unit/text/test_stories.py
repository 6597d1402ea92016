"""The built-in stories: fixed for all time, and true to their grammar."""

import hashlib
import re

import pytest

from minigpt.interpret.links import SCORES, links
from minigpt.text.stories import BOYS, CAPITALS, GIRLS, MAX_SEED, Choices, stories


def text(length: int, seed: int = 1) -> str:
    return "".join(stories(length, seed))


def test_the_text_never_changes() -> None:
    """If this fails, runs on `builtin:stories` cannot be resumed, and recorded losses cannot be compared."""
    hashes = [hashlib.sha256(text(*key).encode()).hexdigest() for key in ((1_000_000, 1), (1000, MAX_SEED))]
    assert hashes == [
        "f74d47e0f77d11491d1ce41fbf7227760ef5cb115a7783d5fbca2faeb1078cca",
        "fd963f9001f8114da4fdc695aa3983a041c1686a9b3adf6094b235f3970cc392",
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
    names, pronoun = "|".join((*GIRLS, *BOYS)), "She|He"
    for story in text(50_000).split("\n\n")[:-1]:
        girl, boy = sorted(set(re.findall(rf"\b(?:{names})\b", story)))
        assert (girl in GIRLS, boy in BOYS) == (True, True), story
        for word, name in re.findall(rf"\b({pronoun})\b(?:(?!{pronoun}).)*?\b({names})\b", story):
            assert name == (girl if word == "She" else boy), story


def test_the_first_letter_shows_the_kind_of_a_name() -> None:
    kinds = [{name[0] for name in names} for names in (GIRLS, BOYS, CAPITALS, ("She", "He", "They", "I"))]
    assert sum(map(len, kinds)) == len(set.union(*kinds))
    assert len({*GIRLS, *BOYS}) >= 40


def test_places_and_songs_repeat() -> None:
    for story in text(50_000).split("\n\n")[:-1]:
        assert len(set(re.findall(r"(?:from|to|in) ([A-Z]\w+)", story))) == 2, story
        assert re.search(r'sing.*: "(.+), \1\."$', story), story


def test_links_lead_from_a_pronoun_and_a_copy_to_what_they_repeat() -> None:
    story = 'Anna from Wusana.\nJakob is here.\nHe says: "I am Jakob from Wusana."\n\nHe says: "I am Jakob from Wusana.'
    found = list(links(story))
    (pronoun,) = (link for link in found if "he" in link.keys)
    assert story[pronoun.query :].startswith(' Jakob from Wusana."')
    assert ["".join(story[key] for key in keys) for keys in (pronoun.keys["he"], pronoun.keys["not he"])] == [
        "Jakob",
        "Anna",
    ]
    copies = [(story[link.query], *(story[key] for key in link.keys["copy"])) for link in found if "copy" in link.keys]
    assert copies == [("W", "u"), ("u", "s"), ("s", "a"), ("a", "n"), ("n", "a")], "the next story starts anew"


def test_the_next_character_follows_from_the_links() -> None:
    """At each link the text continues as the earlier words do, from wherever the part of the text starts."""
    part = text(20_000)[137:]
    found = list(links(part))
    assert {name for link in found for name in link.keys} == {*SCORES}
    for query, keys in found:
        assert max(max(several) for several in keys.values()) < query
        following = keys.get("copy") or (keys.get("he") or keys["she"])[:1]
        assert {part[key] for key in following} == {part[query + 1]}
        assert part[query + 1] not in {part[rival] for name in ("not he", "not she") for rival in keys.get(name, ())}
