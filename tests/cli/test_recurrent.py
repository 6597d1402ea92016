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


@pytest.mark.parametrize("command", ["attention lstm", "claims lstm"])
def test_views_of_attention_say_what_to_use_instead(cli: Cli, command: str) -> None:
    done = cli(*command.split())
    assert done.error.startswith("runs/lstm/checkpoints/step-")
    assert len(done.err.splitlines()) == 1
    problem = (
        "is a recurrent network and has no attention; to see how it uses its past: minigpt eval lstm --by-position"
    )
    assert problem in done.error


@pytest.mark.parametrize("command", ["inspect lstm", "inspect gpt --compare lstm", "inspect lstm --max-weights 0"])
def test_a_page_shows_a_recurrent_network_without_heads(cli: Cli, tmp_path: Path, command: str) -> None:
    page = tmp_path / "page.html"
    assert cli(*command.split(), "-o", page).code == 0
    shown = page_data(page.read_text(encoding="utf-8"))["models"][-1]
    assert (shown["config"]["family"], shown["heads"]) == ("lstm", [])
    assert "no layers of heads" in cli("inspect", "lstm", "--head", 0, "-o", page).error


def test_sampling_goes_beyond_the_context_and_stops_at_a_string(cli: Cli) -> None:
    prompt = VERSE[:50]  # the context is 16
    options = ["sample", "lstm", "--prompt", prompt, "--length", 60, "-n", 2]
    done = cli(*options, "--json")
    assert done.err == ""
    whole = [sample["text"] for sample in done.json["samples"]]
    assert [len(text) for text in whole] == [60, 60]
    assert [one["text"] for one in cli(*options, "--engine", "torch", "--json").json["samples"]] == whole
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


def test_python_gives_text_losses_and_the_page() -> None:
    model = minigpt.load("lstm")
    assert len(model.generate("and ", length=40).text) == 40
    assert 0 < model.loss(VERSE[:50]).mean < 5
    assert "<html" in model.inspect("May").html


def test_copied_works_with_a_state_in_place_of_a_context(cli: Cli) -> None:
    sample = cli("sample", "lstm", "--copied", "--json", "-l", 40).json["samples"][0]
    assert len(sample["copied"]) == len(sample["text"]) == 40


def test_predictions_of_two_runs_are_averaged(cli: Cli) -> None:
    alone = {run: cli("eval", run, "--json").json["loss"] for run in ("gpt", "lstm")}
    found = cli("eval", "gpt", "--with", "lstm", "--json").json
    assert found["loss"] < sum(alone.values()) / 2, "the logarithm is concave"
    assert [Path(path).parts[1] for path in found["with"]] == ["lstm"]
    assert cli("eval", "lstm", "--with", "gpt", "--json").json["loss"] == pytest.approx(found["loss"])
    assert cli("eval", "gpt", "--with", "gpt", "--json").json["loss"] == pytest.approx(alone["gpt"])
    shown = cli("eval", "gpt", "--with", "lstm").out
    assert "\naveraged with       runs/lstm/checkpoints/step-" in shown
    assert "\nthese models " in shown
    assert "in training" not in shown
    for engine in ("numpy", "torch"):
        options = ("-l", 30, "--engine", engine, "--json")
        pairs = ("gpt", "lstm"), ("lstm", "gpt"), ("lstm", "lstm")
        mixed, swapped, same = (cli("sample", one, "--with", other, *options).json for one, other in pairs)
        texts = [found["samples"][0]["text"] for found in (mixed, swapped, same)]
        assert texts[0] == texts[1] != texts[2]
        assert "lstm" in mixed["with"][0]


def test_runs_of_other_texts_are_averaged_with_care(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "more.txt").write_text(VERSE + "!", encoding="utf-8")
    (tmp_path / "other.txt").write_text(VERSE[::-1], encoding="utf-8")
    for name in ("more", "other"):
        called(tmp_path, "train", f"{name}.txt", *SMALL)
    more, other = (tmp_path / "runs" / f"{name}-1" for name in ("more", "other"))
    for command in ("eval", "sample"):
        assert "gpt and more-1 have different vocabularies" in cli(command, "gpt", "--with", more).error
        assert "no run" in cli(command, "gpt", "--with", "absent").error
    warning = "other-1 may have been trained on this text: the loss may be too low"
    assert warning in cli("eval", "gpt", "--with", other).err
    assert warning in cli("eval", "gpt", "verse.txt", "--with", other).err
    assert warning in cli("eval", "gpt", tmp_path / "other.txt", "--with", other).err
    assert "may have" not in cli("eval", "gpt", tmp_path / "more.txt", "--with", other, "--unknown", "skip").err
    assert "may have" not in cli("eval", "gpt", "verse.txt", "--with", "lstm").err
    assert (
        "--copied needs one training text, and other-1 was trained on another part or text"
        in cli("sample", "gpt", "--with", other, "--copied").error
    )
    assert cli("sample", "gpt", "--with", "lstm", "--copied", "-l", 20).code == 0
    here = Path.cwd()
    monkeypatch.chdir(tmp_path)
    done = cli("sample", here / "runs/gpt", "--with", "other-1", "-o", "other.txt", "--force")
    assert "the run was trained on this text" in done.error


def test_a_separate_validation_text_is_unknown_to_both_runs(cli: Cli, tmp_path: Path) -> None:
    for name, text in (("train", VERSE), ("held", VERSE[:400])):
        (tmp_path / f"{name}.txt").write_text(text, encoding="utf-8")
    for name, fraction in (("one", "0.1"), ("two", "0.01")):
        options = ("-s", f"data.val_source={tmp_path / 'held.txt'}", "-s", f"data.val_fraction={fraction}")
        called(tmp_path, "train", str(tmp_path / "train.txt"), "--name", name, *SMALL, *options)
    runs = [tmp_path / "runs" / name for name in ("one", "two")]
    assert "may have" not in cli("eval", runs[0], "--with", runs[1]).err
    assert "one may have been trained on this text" in cli("eval", runs[0], tmp_path / "train.txt").err
    called(tmp_path, "train", str(tmp_path / "train.txt"), "--name", "most", *SMALL, "-s", "data.val_fraction=0.02")
    called(tmp_path, "train", str(tmp_path / "train.txt"), "--name", "less", *SMALL)
    assert "most may have been trained" in cli("eval", tmp_path / "runs/less", "--with", tmp_path / "runs/most").err
    assert "may have" not in cli("eval", tmp_path / "runs/most", "--with", tmp_path / "runs/less").err
    copied = cli("sample", tmp_path / "runs/less", "--with", tmp_path / "runs/most", "--copied")
    assert "--copied needs one training text" in copied.error


def test_a_run_may_have_the_name_of_a_file(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "poems").write_text(VERSE, encoding="utf-8")
    called(tmp_path, "train", "poems", "--name", "poems", *SMALL)
    monkeypatch.chdir(tmp_path)
    assert cli("eval", "poems").code == 0
