"""`minigpt claims`."""

import itertools
import re
import shlex
from pathlib import Path

import pytest
import torch
from command_line import SMALL, Cli, called
from pages import page_data


def test_claims_without_a_model_all_hold(cli: Cli) -> None:
    found = cli("claims", "--json").json
    assert {row["verdict"] for row in found} == {"PASS", "CORRECTED"}
    lines = cli("claims").out.splitlines()
    assert not any("notes" in line for line in lines)
    for label in ("said:", "wrong:"):
        assert sum("  CORRECTED  " in line for line in lines) == sum(f"      {label}" in line for line in lines) > 5


def test_a_claim_shows_what_is_often_said_and_what_was_measured(cli: Cli) -> None:
    shown = {number: " ".join(cli("claims", str(number)).out.split()) for number in (9, 58)}
    assert "9 CORRECTED Scaling prevents vanishing gradients through the softmax said: Dividing by" in shown[9]
    assert re.search(
        r"wrong: A softmax never .* measured: largest factor .* source: minigpt/course/claims/\S+:\d+ 1 corrected",
        shown[9],
    )
    assert re.search(r"trained: .* above RoPE.* source: docs/project/lab/positions.md#\S+ 1 pass", shown[58])


@pytest.mark.slow
def test_a_run_adds_claims_about_trained_models(cli: Cli, folder: Path) -> None:
    plain = {row["id"] for row in cli("claims", "--json").json}
    found = cli("claims", "verse", "--json").json
    trained = [row for row in found if row["verdict"] not in ("PASS", "CORRECTED")]
    assert len(trained) >= 10
    assert all(row["title"].endswith("?") for row in trained)
    assert {row["verdict"] for row in trained} <= {"SUPPORTED", "NOT SUPPORTED", "INCONCLUSIVE", "NOT APPLICABLE"}
    assert not plain & {row["id"] for row in trained}
    lines = cli("claims", "verse").out.splitlines()
    measured = [after for line, after in itertools.pairwise(lines) if line.endswith("?")]
    assert len(measured) == len(trained)
    assert all(line.startswith("      measured:  ") for line in measured)


@pytest.fixture(scope="module")
def stories(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `37`, a run of two layers of two heads on stories. Read only."""
    folder = tmp_path_factory.mktemp("stories")
    shape = [f"model.{key}" for key in ("n_layer=2", "n_head=2", "context=128")]
    options = [word for setting in (*shape, "data.val_fraction=0.3") for word in ("-s", setting)]
    called(folder, "train", "builtin:stories:60000", "--name", "37", *SMALL, *options)
    return folder


@pytest.mark.skipif("os.name == 'nt'", reason="Windows quotes in another way")
def test_the_head_of_each_pronoun_opens_with_the_printed_command(
    cli: Cli, stories: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(stories)
    monkeypatch.setattr("webbrowser.open", lambda url: True)
    shown = cli("claims", "37", "runs/37").out
    assert cli("claims", "runs/37", "37").out == shown
    found = re.findall(r"head (\d)\.(\d): \S+ of its attention on the name that (H|Sh)e means.*\n +look: +(.*)", shown)
    assert [who for _, _, who, _ in found] == ["H", "Sh"]
    (row,) = cli("claims", "37", "runs/37", "--json").json
    assert [(str(head["layer"]), str(head["head"])) for head in row["heads"]] == [(a, b) for a, b, *_ in found]
    for layer, head, who, command in found:
        program, *words = shlex.split(command)
        assert program == "minigpt"
        assert cli(*words, "-o", tmp_path / "page.html").code == 0
        data = page_data((tmp_path / "page.html").read_text(encoding="utf-8"))
        assert data["models"][0]["name"] == "37"
        assert data["text"].endswith(f'{who}e says: "I am ')
        assert (data["head"], data["selected"]) == ([int(layer), int(head)], len(data["text"]) - 1)


def test_a_number_is_a_claim_and_anything_else_a_run(cli: Cli, folder: Path) -> None:
    assert cli("claims", "37").error == "claim 37 is about a trained run; to check the newest: minigpt claims 37 last"
    assert cli("claims", "last", "999").error.startswith("there is no claim 999; ")
    assert cli("claims", "9" * 5000).error.startswith("there is no claim 999")
    assert cli("claims", "verse", "other").error == "expected one run, got verse, other"
    assert [row["id"] for row in cli("claims", "34", "verse", "9", "--json").json] == [9, 34]


def test_claims_say_that_a_model_of_four_steps_needs_more_training(cli: Cli, folder: Path) -> None:
    assert "needs more training" in cli("claims", "34", "verse").err


def test_a_claim_that_fails_ends_in_an_error(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minigpt.course.claims.mask.causal_mask", lambda q, k, device: torch.ones(q, k).bool())
    done = cli("claims")
    assert done.code == 1
    assert "claims do not hold: " in done.err.splitlines()[-1]
    assert "  FAIL  " in done.out
    assert "No such" not in done.err


def test_a_missing_run_is_an_error(cli: Cli) -> None:
    assert "nothing" in cli("claims", "nothing").error
    assert "--checkpoint needs a run" in cli("claims", "--checkpoint", "best").error
