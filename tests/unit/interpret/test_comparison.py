"""Runs are grouped by their settings, and ranked only where their losses are of the same text."""

import math
import re
import statistics
from typing import Any

import pytest
from compared import measured

from minigpt.interpret.comparison import compare, document


def names(*runs: Any) -> list[str]:
    return [group.label for group in compare(runs).groups]


def test_seeds_of_one_setting_share_a_group() -> None:
    losses = [1.5, 1.7, 1.3]
    runs = [measured(f"lstm-{seed}", seed=seed, loss=loss) for seed, loss in enumerate(losses)]
    found = compare([measured("gpt", loss=1.4, n_layer=3), *runs])
    assert [group.label for group in found.groups] == ["gpt", "lstm, 3 seeds"]
    rows = document(found)["groups"]
    assert rows[1]["loss"] == pytest.approx(1.5)
    assert rows[1]["loss_standard_error"] == pytest.approx(statistics.stdev(losses) / math.sqrt(3))
    assert rows[0]["loss_standard_error"] is None
    assert [run["seed"] for run in rows[1]["runs"]] == [0, 1, 2]


def test_the_same_seed_twice_is_no_second_seed() -> None:
    found = compare([measured("a-1", seed=1, loss=2.0), measured("a-2", seed=1, loss=1.0), measured("a-3", seed=2)])
    assert [[run.name for run in group.runs] for group in found.groups] == [["a-2"], ["a-1", "a-3"]]


def test_groups_have_the_start_of_the_names_that_is_theirs_alone() -> None:
    assert names(measured("wide-10", seed=1), measured("wide-11", seed=2)) == ["wide, 2 seeds"]
    assert names(measured("anna", seed=1), measured("ben", seed=2)) == ["anna, ben, 2 seeds"]
    two = [measured(f"run-{n}", seed=n, n_layer=2 + n // 3) for n in (1, 2, 3, 4)]
    assert names(*two) == ["run-1, run-2, 2 seeds", "run-3, run-4, 2 seeds"]


@pytest.mark.parametrize(("parameters", "is_noted"), [(1090, False), (1110, True)])
def test_sizes_that_differ_by_more_than_a_tenth_are_noted(parameters: int, is_noted: bool) -> None:
    runs = measured("a"), measured("b", parameters=parameters, n_layer=3)
    assert any("the sizes differ" in note for note in compare(runs).notes) == is_noted


def test_losses_are_ranked_on_one_text() -> None:
    found = compare([measured("worse", loss=2.0), measured("better", loss=1.0, n_layer=1)])
    assert [group.name for group in found.groups] == ["better", "worse"]
    assert (found.is_ranked, found.unit, found.notes) == (True, "loss", ())


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        ({"fingerprint": "other", "corpus": "b.txt"}, r"not ranked, because the texts differ \(a.txt: a; b.txt: b\)"),
        ({"fingerprint": "other"}, "texts differ .*same name"),
        ({"val_fraction": 0.2}, r"not ranked, because the validation parts differ .*0\.1: a; 0\.2: b"),
    ],
)
def test_losses_of_different_texts_are_not_ranked(changes: dict[str, Any], note: str) -> None:
    found = compare([measured("a", loss=2.0), measured("b", loss=1.0, **changes)])
    assert [group.name for group in found.groups] == ["a", "b"]
    assert document(found)["ranked_by"] is None
    (only,) = found.notes
    assert re.search(note, only)


def test_different_tokenizers_are_ranked_by_bits_per_character() -> None:
    """A byte has a lower loss than a character of three bytes."""
    found = compare([
        measured("bytes", loss=1.0, bits=4.0, tokenizer="byte", characters=98),
        measured("chars", loss=2.0, bits=2.9),
    ])  # fmt: skip
    assert [group.name for group in found.groups] == ["chars", "bytes"]
    assert document(found)["ranked_by"] == "bits_per_character"
    assert "tokenizers differ (char: chars; byte: bytes)" in found.notes[0]
    assert "100 characters: chars; 98 characters: bytes" in found.notes[1]


def test_what_makes_a_comparison_unequal_is_named() -> None:
    found = compare([
        measured("a"),
        measured("b", context=8, threads=4, dtype="bfloat16"),
        measured("short", by_position=(), steps=()),
    ])  # fmt: skip
    notes = "\n".join(found.notes)
    assert "contexts differ (16: a, short; 8: b)" in notes
    assert re.search(r"different amounts of text \([\d,]+ tokens: a, short; [\d,]+ tokens: b\)", notes)
    assert "different precisions (float32: a, short; bfloat16: b)" in notes
    assert "cpu, 4 threads, Z80: b" in notes
    assert "no loss by position for short" in notes
    assert "no training curves for short" in notes


def test_unequal_sizes_times_and_steps_are_named() -> None:
    equal = compare([measured("a"), measured("b", parameters=1050, context=8, steps=(0, 4, 8.5))])
    assert not any("differ" in note for note in equal.notes if "contexts" not in note and "step reads" not in note)
    one_step = compare([measured("a", steps=(0, 2)), measured("b", steps=(0, 3))])
    assert not any("differ" in note for note in one_step.notes)
    found = compare([measured("a-1", seed=1), measured("a-2", seed=2), measured("b", parameters=2000, steps=(0, 16))])
    assert found.notes == (
        "the sizes differ (1,000 parameters: a; 2,000 parameters: b), which also changes the loss",
        "the training times differ (8 s: a; 16 s: b), which also changes the loss",
        "the lengths of training differ (8 steps: a; 16 steps: b), which also changes the loss",
    )
    imported = compare([measured("a"), measured("b", steps=(0,))]).notes  # trained by another program
    assert not any("differ" in note for note in imported)
    of_machines = compare([measured("a"), measured("b", threads=4, steps=(0, 16))]).notes
    assert any("do not compare training times" in note for note in of_machines)
    assert not any("the training times differ" in note for note in of_machines)


def test_a_seed_that_stopped_early_is_named() -> None:
    found = compare([measured("a-1", seed=1), measured("a-2", seed=2, steps=(0, 4))])
    assert found.notes == ("the seeds of a were not trained equally long (a-1 to step 8, a-2 to step 4)",)
