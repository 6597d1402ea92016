"""`minigpt compare`."""

import shutil
from pathlib import Path

import pytest
from command_line import SMALL, VERSE, Cli, called
from compared import measured

from minigpt.cli.compare import HEAD, _rows
from minigpt.interpret import comparison


@pytest.fixture(scope="module")
def rivals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with runs on verse.txt that differ in one setting each, and `alien` on another text. Read only."""
    folder = tmp_path_factory.mktemp("rivals")
    (folder / "verse.txt").write_text(VERSE, encoding="utf-8")
    (folder / "short.txt").write_text(VERSE[:60], encoding="utf-8")
    (folder / "other.txt").write_text(VERSE[::-1], encoding="utf-8")
    runs = {
        "gpt-1": "verse.txt -s train.seed=1",
        "gpt-2": "verse.txt -s train.seed=2",
        "bytes": "verse.txt -s data.tokenizer=byte",
        "lstm": "verse.txt -s model.family=lstm",
        "half": "verse.txt -s model.context=8",
        "one": "verse.txt -s model.context=1",
        "alien": "other.txt",
        "brief": "short.txt",
    }
    for name, arguments in runs.items():
        text, *changes = arguments.split()
        called(folder, "train", text, "--name", name, *SMALL, *changes)
    return folder


@pytest.fixture(autouse=True)
def at_rivals(rivals: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the test in the shared folder."""
    monkeypatch.chdir(rivals)


@pytest.fixture
def copy(rivals: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run the test in a copy of the shared folder."""
    monkeypatch.chdir(shutil.copytree(rivals, tmp_path / "copy"))
    return tmp_path / "copy"


@pytest.mark.slow
def test_the_table_has_a_row_per_setting_and_the_best_first(cli: Cli) -> None:
    table, settings = cli("compare", "half", "gpt-1", "gpt-2").out.split("\n\n")
    assert "model.context  " in settings
    assert "train.seed" not in settings
    *notes, head, first, second = table.splitlines()
    rows = [first, second]
    assert head.split("  ")[0] == "run"
    assert "contexts differ" in notes[0]
    assert "different amounts of text" in notes[1]
    losses = {name: cli("eval", name, "--json").json["loss"] for name in ("half", "gpt-1", "gpt-2")}
    mean = (losses["gpt-1"] + losses["gpt-2"]) / 2
    (seeds,) = [row for row in rows if row.startswith("gpt-1, gpt-2")]
    error = abs(losses["gpt-1"] - losses["gpt-2"]) / 2
    assert f"{mean:.4f} ± {error:.4f}" in seeds
    shown = [row.startswith("half") for row in rows]
    assert shown == [losses["half"] < mean, losses["half"] >= mean]


@pytest.mark.slow
def test_the_table_has_the_mean_of_the_steps_of_all_seeds() -> None:
    (row,) = _rows(comparison.compare([measured("a-1", seed=1), measured("a-2", seed=2, step=20)]))
    assert row[HEAD.index("steps")] == "14"


def test_json_has_what_was_measured(cli: Cli) -> None:
    printed = cli("compare", "gpt-1", "lstm", "--json").json
    assert printed["ranked_by"] == "loss"
    runs = {run["name"]: run for run in printed["runs"]}
    assert runs["lstm"]["family"] == "lstm"
    assert runs["gpt-1"]["loss"] == cli("eval", "gpt-1", "--json").json["loss"]
    assert runs["gpt-1"]["curve"]["steps"] == [0, 2, 4]
    assert runs["gpt-1"]["steps"] in (2, 4)
    assert runs["gpt-1"]["curve"]["characters_per_second"] > 0


def test_different_tokenizers_and_texts(cli: Cli) -> None:
    printed = cli("compare", "gpt-1", "bytes", "--json").json
    assert printed["ranked_by"] == "bits_per_character"
    bits = [run["bits_per_character"] for run in printed["runs"]]
    assert bits == sorted(bits)
    note, *rows = cli("compare", "gpt-1", "alien").out.splitlines()
    assert [row.split()[0] for row in rows] == ["run", "gpt-1", "alien"]
    assert "not ranked, because the validation texts differ (gpt-1: verse.txt" in note


def test_a_run_given_twice_is_compared_once(cli: Cli) -> None:
    assert len(cli("compare", "gpt-1", "gpt-1").out.splitlines()) == 2


def test_a_checkpoint_is_compared_without_its_run(cli: Cli, copy: Path) -> None:
    shutil.copytree("runs/gpt-1/checkpoints/step-00000002", "kept")
    assert {row.split()[0] for row in cli("compare", "gpt-1", "kept").out.splitlines()[1:]} == {"gpt-1", "kept"}


def test_a_run_that_cannot_be_measured_is_one_line(cli: Cli, copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree("runs/gpt-1", "runs/empty")
    shutil.rmtree("runs/empty/checkpoints")
    assert cli("compare", "gpt-1", "empty").error == "run empty has no checkpoint yet"
    for step in (2, 4):
        with open(f"runs/half/checkpoints/step-{step:08d}/model.safetensors", "r+b") as file:
            file.truncate(100)
    assert "damaged" in cli("compare", "gpt-1", "half").error
    Path("other.txt").write_text("changed", encoding="utf-8")
    monkeypatch.setenv("MINIGPT_CACHE", "empty")
    error = cli("compare", "gpt-1", "alien").error
    assert error.startswith("alien: ")
    assert "available runs" in cli("compare", "gpt-1", "nobody").error
    assert cli("compare").code == 2
