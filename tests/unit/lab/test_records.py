"""The recorded measurements against the length, and their exponents."""

import json
import re
from pathlib import Path

import pytest
from lab_scripts import script

records = script("records.py")


def test_the_exponent_is_that_of_the_last_four_lengths(tmp_path: Path) -> None:
    points = [
        {"family": family, "length": n, "train_ms": (n if n > 32 else 99) ** power, "generate_ms": n}
        for n in (16, 32, 64, 128, 256, 512)
        for family, power in (("a", 1.5), ("b", 2.0))
    ]
    (tmp_path / "lengths.jsonl").write_text("\n".join(map(json.dumps, points)), encoding="utf-8")
    first, second = records.lengths(tmp_path / "lengths.jsonl")
    assert (first["variant"], second["variant"]) == ("a", "b")
    assert first["train_ms"][2:] == [n**1.5 for n in (64, 128, 256, 512)]
    exponents = [run[f"{name}_ms exponent"] for run in (first, second) for name in ("train", "generate")]
    assert exponents == pytest.approx([1.5, 1, 2, 1])


def test_the_page_has_the_recorded_exponents() -> None:
    page = (records.LAB / "recurrence.md").read_text(encoding="utf-8")
    points = [json.loads(line) for line in records.LENGTHS.read_text(encoding="utf-8").splitlines()]
    for title, name in {
        "training time": "train_ms",
        "training memory": "train_mb",
        "generation time": "generate_ms",
        "cache": "cache_mb",
    }.items():
        (row,) = re.findall(rf"^\| {title}, exponent \| (.+) \|$", page, re.M)
        own = ([point for point in points if point["family"] == family] for family in ("modern", "lstm", "rnn"))
        assert row.split(" | ") == [f"{records.slope(of_family, name):.2f}" for of_family in own]
