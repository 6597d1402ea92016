"""The chapters of the course: their titles, what each measures, and the numbers in the book."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from minigpt.course import letters, networks

RECORDED = Path(__file__).with_name("recorded.json")
"""The numbers of SEEDS for each chapter: {"1": {"pairs": [2.08, ...], ...}, ...}. scripts/record_course writes it."""
SEEDS = (1, 2, 3, 4, 5)
"""The seeds of the book."""


@dataclass(frozen=True)
class Number:
    """A number of a chapter: what it is, and how to print it."""

    label: str
    style: str = ".3f"

    def show(self, value: float) -> str:
        """Return the value as text."""
        return f"{value:{self.style}}"

    def show_range(self, values: list[float]) -> str:
        """Return the range of the book for the values of its seeds, as text."""
        low, high = map(self.show, book_range(values))
        return low if low == high else f"{low} to {high}"

    def is_outside(self, value: float, values: list[float]) -> bool:
        """Return whether a reader's value is outside the range of the book, and looks so."""
        low, high = book_range(values)
        return not low <= value <= high and self.show(value) not in (self.show(low), self.show(high))


@dataclass(frozen=True)
class Chapter:
    """A chapter of the course."""

    number: int
    title: str
    numbers: Mapping[str, Number]
    measure: Callable[[int], dict[str, float]]
    """Train what the chapter needs with this seed, and return its numbers by name."""

    @property
    def page(self) -> str:
        """The name of its file in docs/course."""
        return f"{self.number:02}-{self.title.lower().replace(' ', '-').replace('?', '')}.md"

    def recorded(self) -> dict[str, list[float]]:
        """Return the values of the book by name, one for each seed."""
        recorded: dict[str, list[float]] = json.loads(RECORDED.read_text(encoding="utf-8"))[str(self.number)]
        return recorded


def book_range(values: list[float]) -> tuple[float, float]:
    """Return the range in which a reader's value should lie, for the values of five seeds.

    One of three times, a sixth seed is outside the range of five. So each end is moved by half of their distance,
    but not below zero.
    """
    low, high = min(values), max(values)
    wider = low - (high - low) / 2
    return (wider if low < 0 else max(0.0, wider)), high + (high - low) / 2


SHARE = ".1%"
CHANCE = 'probability of "A" after `"I am `: '


def small(name: str, what: str) -> dict[str, Number]:
    """Return the numbers of `letters.small`."""
    return {
        f"mine {name}": Number(f"loss of {what}, trained as in this chapter"),
        f"A {name}": Number(CHANCE + what, SHARE),
    }


CHAPTERS = (
    Chapter(
        1,
        "Guess the next letter",
        {
            "letters": Number("distinct letters, V", ".0f"),
            "uniform": Number("loss of a uniform guess, ln V"),
            "frequencies": Number("loss if you know how often each letter occurs"),
            "pairs": Number("loss of the table of pairs"),
            "triples": Number("loss of the table of triples"),
            "A pairs": Number(CHANCE + "the table of pairs", SHARE),
            "A triples": Number(CHANCE + "the table of triples", SHARE),
            "cells": Number("cells in the table of triples", ",.0f"),
            "seen": Number("share of these cells that occur in the text", SHARE),
            "e after H": Number('probability of "e" after "H"', SHARE),
        },
        letters.guess,
    ),
    Chapter(
        2,
        "Average the past",
        {
            "pairs": Number("loss of the table of pairs"),
            "average": Number("loss of the average of all earlier letters"),
            "both": Number("loss of both together"),
            "A average": Number(CHANCE + "both together", SHARE),
        },
        letters.average,
    ),
    Chapter(
        3,
        "A score",
        {
            "brown": Number('score of "fox" and "brown"', ".0f"),
            "quick": Number('score of "fox" and "quick"', ".0f"),
            "the": Number('score of "fox" and "The"', ".0f"),
            "fox": Number('score of "fox" and itself', ".0f"),
        },
        letters.fox,
    ),
    Chapter(
        4,
        "Softmax and scale",
        {
            **{f"spread {d}": Number(f"standard deviation of q · k, d_k = {d}", ".2f") for d in letters.SIZES},
            **{f"raw {d}": Number(f"keys in use of 256 without the scale, d_k = {d}", ".1f") for d in letters.SIZES},
            **{f"scaled {d}": Number(f"keys in use of 256 with the scale, d_k = {d}", ".1f") for d in letters.SIZES},
        },
        letters.scale,
    ),
    Chapter(
        5,
        "One trained head",
        {
            "pairs": Number("loss of the table of pairs"),
            "untrained": Number("loss at step 0"),
            "early": Number("loss at step 100"),
            "trained": Number("loss at step 1,000"),
            "frozen": Number("loss at step 1,000 if W_V stays random"),
            "speech": Number('share of weight on I, :, and " after `"I am `', SHARE),
            "A head": Number(CHANCE + "the head", SHARE),
        },
        letters.one_head,
    ),
    Chapter(
        6,
        "Positions",
        {
            "rotary": Number("loss with RoPE"),
            "learned": Number("loss with learned positional embeddings"),
            "none": Number("loss without positional encodings"),
            "none, one layer": Number("loss without positional encodings, one layer"),
            "rotary, one layer": Number("loss with RoPE, one layer"),
            "cost": Number("cost of none, four layers"),
            "cost, one layer": Number("cost of none, one layer"),
            **small("rope", "one head with RoPE"),
        },
        networks.positions,
    ),
    Chapter(
        7,
        "Many heads",
        {
            **{f"heads {n}": Number(f"loss with {n} head{'s' if n > 1 else ''} of {64 // n}") for n in networks.HEADS},
            "gain": Number("gain of four heads over one"),
            **small("heads", "four heads"),
        },
        networks.heads,
    ),
    Chapter(
        8,
        "The block",
        {
            **{
                f"after {n}": Number(f"loss if the model stops after {n} of {networks.LAYERS} layers")
                for n in range(networks.LAYERS)
            },
            "whole": Number("loss of the whole model"),
            **{
                f"attention {n}": Number(f"rise without the attention of layer {n + 1}") for n in range(networks.LAYERS)
            },
            **{f"mlp {n}": Number(f"rise without the MLP of layer {n + 1}") for n in range(networks.LAYERS)},
            **small("blocks", "three blocks"),
        },
        networks.block,
    ),
    Chapter(
        9,
        "Your GPT",
        {
            "gpt": Number("loss of the GPT"),
            "A gpt": Number(CHANCE + "the GPT", SHARE),
            "share": Number('largest share of a head on the "A" of Anna', SHARE),
            "without": Number(CHANCE + "the GPT without this head", SHARE),
        },
        networks.yours,
    ),
    Chapter(
        10,
        "Watch a head form",
        {
            "uniform": Number("copying: share of uniform attention", SHARE),
            "copy 0": Number("copying: share of this head at step 0", SHARE),
            "copy": Number("copying: share of this head at the end", SHARE),
            "pronoun": Number("best share on the name that He or She means", SHARE),
            "loss": Number("loss of the whole model"),
            "without copy": Number("rise of the loss without the copying head"),
            "most": Number("rise without the most important head"),
            "least": Number("rise without the least important head"),
        },
        networks.learned,
    ),
    Chapter(
        11,
        "What attention replaced",
        {
            "lstm": Number("loss of the LSTM at step 800"),
            "gpt": Number("loss of the GPT at step 800"),
            "lstm early": Number("loss of the LSTM at step 200"),
            "gpt early": Number("loss of the GPT at step 200"),
            "lstm far": Number("LSTM: gradient at distance 32, relative to distance 1", ".4f"),
            "gpt far": Number("GPT: gradient at distance 32, relative to distance 1", ".4f"),
        },
        networks.replaced,
    ),
)
