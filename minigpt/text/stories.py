"""`builtin:stories`: little stories from a grammar, the same on every machine and with every version of Python.

Each story has a girl and a boy. Most lines repeat parts of the introduction, so a model must look back. Shortened:

    Anna from Wusana has a blue drum.
    Jakob from Mosava has a big drum.
    He says: "I am Jakob from Mosava."
    "I like your big drum," says Anna.
    They sing in Mosava: "zenu ve, zenu ve."

A small model learns the stories in minutes because they are regular:

- The first letter of a name shows whether it is a girl's, a boy's or a place's. So a model can tell who "He" is.
- Places and songs are invented in each story, so a model must copy them.
- Each sentence has its own line, and an empty line ends each story.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

# Girls, boys, places, and other words that start a sentence: no two of these groups share a first letter.
GIRLS = (
    "Ada", "Alma", "Anna", "Bella", "Berta", "Britta", "Celia", "Clara", "Cora", "Diana", "Dina", "Dora",
    "Ella", "Emma", "Eva", "Fiona", "Flora", "Frida", "Gerda", "Gina", "Greta",
)  # fmt: skip
BOYS = (
    "Jakob", "Jan", "Jonas", "Leo", "Linus", "Lukas", "Nico", "Nils", "Noah", "Olaf", "Oscar", "Otto",
    "Pablo", "Paul", "Peter", "Robin", "Rolf", "Ruben", "Udo", "Ulf", "Urban",
)  # fmt: skip
ADJECTIVES = ("red", "blue", "green", "white", "black", "golden", "small", "big", "new", "strange")
THINGS = ("kite", "boat", "drum", "hat", "lamp", "book", "bell", "cup", "ring", "coat", "horse", "bird", "doll", "flag")
SYLLABLES = tuple(consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou")
CAPITALS = tuple(consonant + vowel for consonant in "KMVWZ" for vowel in "aeiou")
"""The first syllables of places."""

OPENINGS = (
    "{a.name} from {a.place} has a {a.thing}.\n{b.name} from {b.place} has a {b.thing}.\n",
    (
        "{a.name} has a {a.thing}.\n{a.He} comes from {a.place}.\n"
        "{b.name} has a {b.thing}.\n{b.He} comes from {b.place}.\n"
    ),
)
EVENTS = (
    "{a.He} is {a.name} from {a.place}.\n",
    '{a.He} says: "I am {a.name}."\n',
    '{a.He} says: "I am {a.name} from {a.place}."\n',
    '"I like your {b.thing}," says {a.name}.\n',
    "{a.He} likes the {b.thing} from {b.place}.\n",
    "{a.He} takes {a.his} {a.thing} to {b.place}.\n",
)
ENDINGS = ('{a.name} and {b.name} sing: "{song}, {song}."\n\n', 'They sing in {a.place}: "{song}, {song}."\n\n')
MAX_SEED = (1 << 64) - 1


@dataclass(frozen=True)
class Person:
    """A girl or boy in a story, with the words for the sentences."""

    name: str
    He: str
    his: str
    place: str
    thing: str


class Choices:
    """Random choices from a seed: SplitMix64 (https://prng.di.unimi.it/splitmix64.c).

    Python's `random` does not promise the same choices in each version.
    """

    def __init__(self, seed: int) -> None:
        self._state = seed

    def below(self, limit: int) -> int:
        """Return an integer from 0 to `limit` - 1."""
        self._state = x = (self._state + 0x9E3779B97F4A7C15) & MAX_SEED
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & MAX_SEED
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB & MAX_SEED
        return (x ^ (x >> 31)) % limit

    def choose(self, options: Sequence[str]) -> str:
        """Return one of the options."""
        return options[self.below(len(options))]

    def word(self, syllables: int) -> str:
        """Return an invented word."""
        return "".join(self.choose(SYLLABLES) for _ in range(syllables))


def stories(length: int, seed: int) -> Iterator[str]:
    """Yield stories of `length` characters in total. The last story may be cut."""
    choices = Choices(seed)
    while length > 0:
        text = story(choices)[:length]
        length -= len(text)
        yield text


def story(choices: Choices) -> str:
    """Return one story. It ends with an empty line."""
    a, b = (
        Person(
            choices.choose(names),
            *pronouns,
            place=choices.choose(CAPITALS) + choices.word(2),
            thing=f"{choices.choose(ADJECTIVES)} {choices.choose(THINGS)}",
        )
        for names, pronouns in ((GIRLS, ("She", "her")), (BOYS, ("He", "his")))
    )
    song = " ".join(choices.word(1 + choices.below(3)) for _ in range(2 + choices.below(2)))
    sentences = []
    for kind in (OPENINGS, EVENTS, EVENTS, EVENTS, EVENTS, ENDINGS):
        if choices.below(2):
            a, b = b, a
        sentences.append(choices.choose(kind).format(a=a, b=b, song=song))
    return "".join(sentences)
