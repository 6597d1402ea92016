"""The command line with a recurrent network."""

import shutil
from pathlib import Path

import pytest
from command_line import SMALL, VERSE, Cli, called
from pages import page_data

import minigpt

pytestmark = pytest.mark.usefixtures("at_lstm")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the runs `lstm` and `gpt`. Read only."""
    folder = tmp_path_factory.mktemp("recurrent")
    (folder / "verse.txt").write_text(VERSE, encoding="utf-8")
    called(folder, "train", "verse.txt", "--name", "lstm", *SMALL, "-s", "model.family=lstm")
    called(folder, "train", "verse.txt", "--name", "gpt", *SMALL)
    return folder


@pytest.fixture
def at_lstm(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the test in the shared folder."""
    monkeypatch.chdir(trained)


def test_the_table_says_what_to_use_instead(cli: Cli) -> None:
    done = cli("inspect", "lstm", "--table")
    assert done.error.startswith("runs/lstm/checkpoints/step-")
    assert len(done.err.splitlines()) == 1
    problem = (
        "is a recurrent network and has no attention; to see how it uses its past: minigpt eval runs/lstm/checkpoints/"
    )
    assert problem in done.error


@pytest.mark.parametrize("command", ["inspect lstm", "inspect gpt --with lstm"])
def test_a_page_shows_a_recurrent_network_without_heads(cli: Cli, tmp_path: Path, command: str) -> None:
    page = tmp_path / "page.html"
    assert cli(*command.split(), "-o", page).code == 0
    shown = page_data(page.read_text(encoding="utf-8"))["models"][-1]
    assert (shown["config"]["family"], shown["heads"]) == ("lstm", [])
    assert "no layers of heads" in cli("inspect", "lstm", "--head", 0, "-o", page).error


def test_sampling_goes_beyond_the_context_and_stops_at_a_string(cli: Cli) -> None:
    prompt = VERSE[:50]  # the context is 16
    options = ["sample", "lstm", "--seed", 1, "--prompt", prompt, "--length", 60, "-n", 2]
    done = cli(*options, "--json")
    assert done.err == ""
    whole = [sample["text"] for sample in done.json["samples"]]
    assert [len(text) for text in whole] == [60, 60]
    stop = whole[0][30:32]
    cut = [one["text"] for one in cli(*options, "--stop", stop, "--json").json["samples"]]
    assert cut == [text.partition(stop)[0] for text in whole]


def test_a_resumed_run_suggests_what_it_has(
    cli: Cli, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(shutil.copytree(trained, tmp_path / "copy"))
    done = cli("train", "--name", "lstm", "--resume", "auto", "-s", "train.steps=5")
    assert "resuming at step 4" in done.err
    assert "minigpt eval lstm --by-position" in done.err
    assert "minigpt inspect lstm --open" in done.err


def test_heads_are_refused_in_one_line(cli: Cli) -> None:
    error = cli("train", "verse.txt", *SMALL, "-s", "model.family=gru", "-s", "model.n_head=2").error
    assert error == "configuration: model.n_head does not apply to model.family gru; remove it"


def test_python_gives_text_losses_and_a_page() -> None:
    model = minigpt.load("lstm")
    assert len(model.generate("and ", length=40).text) == 40
    assert 0 < model.loss(VERSE[:50]).mean < 5
    assert "recurrent network" in model.inspect("May").html


def test_copied_works_with_a_state_in_place_of_a_context(cli: Cli) -> None:
    sample = cli("sample", "lstm", "--copied", "--json", "-l", 40).json["samples"][0]
    assert len(sample["copied"]) == len(sample["text"]) == 40


def test_the_training_text_beside_a_validation_text_is_known(cli: Cli, tmp_path: Path) -> None:
    for name, text in (("train", VERSE), ("held", VERSE[:400])):
        (tmp_path / f"{name}.txt").write_text(text, encoding="utf-8")
    options = ("--name", "one", *SMALL, "-s", f"data.val_source={tmp_path / 'held.txt'}")
    called(tmp_path, "train", str(tmp_path / "train.txt"), *options)
    assert "one was trained on this text" in cli("eval", tmp_path / "runs/one", "--file", tmp_path / "train.txt").err
    assert "was trained" not in cli("eval", tmp_path / "runs/one").err


def test_a_run_may_have_the_name_of_a_file(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "poems").write_text(VERSE, encoding="utf-8")
    called(tmp_path, "train", "poems", "--name", "poems", *SMALL)
    monkeypatch.chdir(tmp_path)
    assert cli("eval", "poems").code == 0
