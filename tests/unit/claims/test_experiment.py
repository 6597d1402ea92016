"""Recorded training runs as evidence for claims: their numbers, their text, and their condition."""

import json
from pathlib import Path

import pytest

from minigpt.course.claims import experiment
from minigpt.course.claims.claim import Claim, decide
from minigpt.course.claims.experiment import Experiment, mean_and_error


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
