"""`minigpt compare`."""

import io
import math
import re
import shutil
from pathlib import Path

import pytest
from command_line import SMALL, VERSE, Cli, called
from compared import measured
from PIL import Image

from minigpt.cli.compare import HEAD, _rows
from minigpt.interpret import comparison
from minigpt.interpret import measured as measuring
from minigpt.storage.runs import best_step


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
def at_rivals(rivals: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run the test in the shared folder, and measure sampling briefly. Ignore training times: they vary."""
    monkeypatch.setattr(comparison, "ALIKE", math.inf)
    monkeypatch.setattr(measuring, "SAMPLE_SECONDS", 0.01)
    monkeypatch.chdir(rivals)
    return rivals


@pytest.fixture
def copy(rivals: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run the test in a copy of the shared folder."""
    monkeypatch.chdir(shutil.copytree(rivals, tmp_path / "copy"))
    return tmp_path / "copy"


@pytest.mark.slow
def test_the_table_has_a_row_per_setting_and_the_best_first(cli: Cli) -> None:
    *notes, head, first, second = cli("compare", "half", "gpt-1", "gpt-2").out.splitlines()
    rows = [first, second]
    assert head.split("  ")[0] == "run"
    assert "contexts differ" in notes[0]
    assert "different amounts of text" in notes[1]
    losses = {name: cli("eval", name, "--json").json["loss"] for name in ("half", "gpt-1", "gpt-2")}
    mean = (losses["gpt-1"] + losses["gpt-2"]) / 2
    (seeds,) = [row for row in rows if row.startswith("gpt, 2 seeds")]
    error = abs(losses["gpt-1"] - losses["gpt-2"]) / 2
    assert f"{mean:.4f} ± {error:.4f}" in seeds
    shown = [row.startswith("half") for row in rows]
    assert shown == [losses["half"] < mean, losses["half"] >= mean]


def test_the_table_has_the_mean_of_the_steps_of_all_seeds() -> None:
    (row,) = _rows(comparison.compare([measured("a-1", seed=1), measured("a-2", seed=2, step=20)]))
    assert row[HEAD.index("steps")] == "14"


def test_json_has_what_was_measured(cli: Cli) -> None:
    found = cli("compare", "gpt-1", "--json").json
    assert found["notes"] == []
    (group,) = found["groups"]
    (run,) = group["runs"]
    own = cli("eval", "gpt-1", "--by-position", "--json").json
    assert run["loss"] == group["loss"] == own["loss"]
    assert run["loss_by_position"] == own["by_position"]
    assert len(run["gradient_by_distance"]) == run["context"] == 16
    assert run["curve"]["steps"] == [0, 2, 4]
    assert run["steps"] in (2, 4)
    assert run["training_characters_per_second"] > 0
    assert run["sampling_characters_per_second"] > 0


def test_a_recurrent_network_is_compared_with_a_transformer(cli: Cli) -> None:
    found = cli("compare", "gpt-1", "lstm", "--json").json
    runs = {group["runs"][0]["family"]: group["runs"][0] for group in found["groups"]}
    gradient = runs["lstm"]["gradient_by_distance"]
    assert len(gradient) == len(runs["lstm"]["loss_by_position"]) == 16
    assert sum(gradient[8:]) / 8 < 0.1 * gradient[0]
    assert runs["lstm"]["sampling_characters_per_second"] > 0
    assert found["ranked_by"] == "loss"


def test_times_of_another_machine_are_marked(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring.Measured, "machine", property(lambda run: f"machine of {run.name}"))
    done = cli("compare", "gpt-1", "alien")
    *notes, _, first, second = done.out.splitlines()
    assert "*" not in first
    assert len(re.findall(r"[\d,]+( s)?\*", second)) == 2
    assert "machine of alien: alien" in "".join(notes)


def test_different_tokenizers_and_texts(cli: Cli) -> None:
    found = cli("compare", "gpt-1", "bytes", "--json").json
    assert found["ranked_by"] == "bits_per_character"
    bits = [group["bits_per_character"] for group in found["groups"]]
    assert bits == sorted(bits)
    note, *rows = cli("compare", "gpt-1", "alien").out.splitlines()
    assert [row.split()[0] for row in rows] == ["run", "gpt-1", "alien"]
    assert note == "not ranked, because the texts differ (verse.txt: gpt-1; other.txt: alien)"


def test_a_context_of_one_and_a_short_text_work(cli: Cli, tmp_path: Path) -> None:
    done = cli("compare", "one", "brief", "--png", tmp_path / "a.png")
    assert done.code == 0
    assert "no loss by position for brief" in done.out
    runs = [group["runs"][0] for group in cli("compare", "one", "brief", "--json").json["groups"]]
    assert (
        [len(run["loss_by_position"]) for run in runs] == [len(run["gradient_by_distance"]) for run in runs] == [1, 0]
    )


def test_pictures_go_into_one_file_or_a_folder(cli: Cli, tmp_path: Path) -> None:
    arguments = ["compare", "gpt-1", "gpt-2", "half"]
    done = cli(*arguments, "--png", tmp_path / "all.png")
    assert str(tmp_path / "all.png") in done.err
    assert Image.open(io.BytesIO((tmp_path / "all.png").read_bytes())).width == 1520
    (tmp_path / "each").mkdir()
    assert cli(*arguments, "--png", tmp_path / "each").code == 0
    assert {path.name for path in (tmp_path / "each").iterdir()} == {
        "steps.png", "time.png", "position.png", "distance.png"
    }  # fmt: skip
    one = Image.open(io.BytesIO((tmp_path / "each/distance.png").read_bytes()))
    assert one.size == (760, 500)
    assert "--force" in cli(*arguments, "--png", tmp_path / "each").error
    assert cli(*arguments, "--png", tmp_path / "each", "--force").code == 0
    assert "verse.txt" in cli(*arguments, "--png", "verse.txt", "--force").error


def test_a_run_given_twice_is_compared_once(cli: Cli) -> None:
    done = cli("compare", "gpt-1", "runs/gpt-1", "gpt-1")
    assert len(done.out.splitlines()) == 2
    assert "comparing each run once" in done.err


def test_a_checkpoint_is_compared_without_its_run(cli: Cli, copy: Path) -> None:
    shutil.copytree("runs/gpt-1/checkpoints/step-00000002", "kept")
    done = cli("compare", "gpt-1", "kept")
    assert "no training curves for kept" in done.out


def test_a_run_that_cannot_be_measured_is_one_line(cli: Cli, copy: Path) -> None:
    shutil.copytree("runs/gpt-1", "runs/empty")
    shutil.rmtree("runs/empty/checkpoints")
    assert cli("compare", "gpt-1", "empty").error == "run empty has no checkpoint yet"
    for step in (2, 4):
        with open(f"runs/half/checkpoints/step-{step:08d}/model.safetensors", "r+b") as file:
            file.truncate(100)
    assert "damaged" in cli("compare", "gpt-1", "half").error
    best = best_step(Path("runs/gpt-2"))
    with open(f"runs/gpt-2/checkpoints/step-{best:08d}/model.safetensors", "r+b") as file:
        file.truncate(100)
    assert f"give its folder: RUN/checkpoints/step-{6 - best:08d}" in cli("compare", "gpt-1", "gpt-2").error
    Path("other.txt").write_text("changed", encoding="utf-8")
    error = cli("compare", "gpt-1", "alien").error
    assert error.startswith("alien: ")
    assert "leave this run out" in error
    assert "available runs" in cli("compare", "gpt-1", "nobody").error
    assert cli("compare").code == 2
