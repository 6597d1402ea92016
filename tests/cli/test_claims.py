"""`minigpt claims`."""

import re
from pathlib import Path

import pytest
import torch
from command_line import Cli


def test_claims_without_a_model_all_hold(cli: Cli) -> None:
    found = cli("claims", "--json").json
    assert {row["verdict"] for row in found} == {"PASS", "CORRECTED"}
    lines = cli("claims").out.splitlines()
    for label in ("notes:", "wrong:"):
        assert sum("  CORRECTED  " in line for line in lines) == sum(f"      {label}" in line for line in lines) > 5


def test_a_claim_shows_what_the_notes_say_and_what_was_measured(cli: Cli) -> None:
    shown = {number: " ".join(cli("claims", str(number)).out.split()) for number in (9, 58)}
    assert "9 CORRECTED Scaling prevents vanishing gradients through the softmax notes: Dividing by" in shown[9]
    assert re.search(
        r"wrong: A softmax never .* measured: largest factor .* source: minigpt/claims/\S+, notes", shown[9]
    )
    assert re.search(r"trained: .* above RoPE.* source: docs/project/lab/positions.md, notes 003", shown[58])


def test_a_run_adds_claims_about_trained_models(cli: Cli, folder: Path) -> None:
    plain = {row["id"] for row in cli("claims", "--json").json}
    found = cli("claims", "verse", "--json").json
    trained = [row for row in found if row["verdict"] not in ("PASS", "CORRECTED")]
    assert len(trained) >= 10
    assert all(row["title"].endswith("?") for row in trained)
    assert {row["verdict"] for row in trained} <= {"SUPPORTED", "NOT SUPPORTED", "INCONCLUSIVE", "NOT APPLICABLE"}
    assert not plain & {row["id"] for row in trained}
    assert [row["id"] for row in found] == sorted(row["id"] for row in found)


def test_a_claim_that_fails_ends_in_an_error(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minigpt.claims.mask.causal_mask", lambda q, k, device: torch.ones(q, k).bool())
    done = cli("claims")
    assert done.code == 1
    assert "claims do not hold: " in done.err.splitlines()[-1]
    assert "  FAIL  " in done.out
    assert "No such" not in done.err


def test_a_missing_run_is_an_error(cli: Cli) -> None:
    assert "nothing" in cli("claims", "nothing").error
    assert "--checkpoint needs a run" in cli("claims", "--checkpoint", "best").error
