"""`minigpt claims`."""

import re

import pytest
import torch
from command_line import Cli


def test_a_claim_shows_what_is_often_said_and_what_was_measured(cli: Cli) -> None:
    shown = {number: " ".join(cli("claims", str(number)).out.split()) for number in (9, 58)}
    assert "9 PASS Scaling prevents vanishing gradients through the softmax said: Dividing by" in shown[9]
    assert re.search(
        r"wrong: A softmax never .* measured: largest factor .* source: minigpt/course/claims/\S+:\d+ 1 pass", shown[9]
    )
    assert re.search(r"trained: .* above RoPE.* source: docs/project/lab/positions.md#\S+ 1 pass", shown[58])


def test_an_unknown_claim_says_what_to_type(cli: Cli) -> None:
    assert cli("claims", "999").error == "there is no claim 999; to list the claims: minigpt claims"
    assert cli("claims", "9" * 5000).error.startswith("there is no claim 999")


def test_a_claim_that_fails_ends_in_an_error(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minigpt.course.claims.heads.attention_weights", lambda q, k: torch.ones(len(q), len(k)))
    done = cli("claims", "35", "58")
    assert done.code == 1
    assert done.err.splitlines()[-1].endswith("1 of 2 claims failed: 35")
    assert "  FAIL  " in done.out
