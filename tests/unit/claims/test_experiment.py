"""Recorded training runs as evidence for claims: their numbers, their text, and their condition."""

import json
from pathlib import Path

import pytest

from minigpt.course.claims import experiment
from minigpt.course.claims.claim import Claim, decide
from minigpt.course.claims.experiment import Experiment, mean_and_error, measure

RUNS = [
    {"variant": variant, "seed": seed, "loss": loss, "best": loss - 1, "far": [4.0, loss, 3 * loss]}
    for variant, losses in {"baseline": [1.5, 2.5], "a - b": [2.0], "muon 0.3/4": [3.0, 5.0]}.items()
    for seed, loss in enumerate(losses)
]


@pytest.mark.parametrize(
    ("quantity", "values"),
    [
        ("baseline", [1.5, 2.5]),
        ("baseline/best", [0.5, 1.5]),
        ("muon 0.3/4", [3.0, 5.0]),
        ("muon 0.3/4/best", [2.0, 4.0]),
        ("a - b", [2.0]),
        ("muon 0.3/4 - baseline", [1.5, 2.5]),
        ("baseline - muon 0.3/4/best", [-0.5, -1.5]),
        ("baseline/far[1:1]", [4.0, 4.0]),
        ("baseline/far[2:3]", [3.0, 5.0]),
        ("muon 0.3/4/far[2:3] / baseline/far[1:1]", [1.5, 2.5]),
        ("baseline/far[2:2] - baseline/best", [1.0, 1.0]),
    ],
)
def test_a_quantity_has_one_value_for_each_seed(quantity: str, values: list[float]) -> None:
    assert measure(quantity, RUNS) == values


def test_a_difference_pairs_the_seeds_that_both_have() -> None:
    runs = [*RUNS, {"variant": "half", "seed": 1, "loss": 2.0}]
    assert measure("half - baseline", runs) == [-0.5]


@pytest.mark.parametrize("quantity", ["nothing", "nothing - baseline", "baseline/nothing", "baseline/nothing[1:2]"])
def test_a_quantity_that_no_run_has_is_an_error(quantity: str) -> None:
    with pytest.raises(KeyError, match="nothing"):
        measure(quantity, RUNS)


def test_the_recorded_numbers_decide_the_claim_and_appear_in_its_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(experiment, "RECORDED", tmp_path / "recorded.json")
    found = Experiment("q", "page#section", "A reaches {a}, {a - b} above B.", lambda a, gap: a > 1 and gap > 0.1)
    claim = Claim(1, "A is worse than B", trained=(found,))
    for a, gap, verdict in (([2.0], [0.2, 0.4], "PASS"), ([2.0], [0.0, 0.1], "FAIL"), ([1.0], [0.2], "FAIL")):
        (tmp_path / "recorded.json").write_text(json.dumps({"q": {"a": a, "a - b": gap}}), encoding="utf-8")
        assert decide(claim, "").verdict == verdict
    (tmp_path / "recorded.json").write_text(json.dumps({"q": {"a": [2.0], "a - b": [0.2, 0.4]}}), encoding="utf-8")
    assert decide(claim, "").trained == ["A reaches 2.000, 0.300 ± 0.100 above B."]
    assert decide(claim, "").where == "docs/project/lab/page.md#section"


def test_a_small_number_is_not_shown_as_zero() -> None:
    assert mean_and_error([3e-5, 5e-5]) == "4e-05 ± 1e-05"
    assert mean_and_error([0.0, 0.0]) == "0.000 ± 0.000"
    assert mean_and_error([0.0123]) == "0.012"
