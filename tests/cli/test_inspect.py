"""`minigpt inspect`."""

import shutil
from pathlib import Path
from typing import Any

import pages
import pytest
from command_line import VERSE, Cli

from minigpt.cli.inspect import _spread

pytestmark = pytest.mark.usefixtures("folder")


def page_data(path: Path) -> Any:
    return pages.page_data(path.read_text(encoding="utf-8"))


def test_the_same_run_gives_the_same_page(cli: Cli, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    done = cli("inspect", "-o", page)
    assert done.out == ""
    assert f"wrote {page}, {page.stat().st_size / 1e6:.2f} MB" in done.err
    before = page.read_bytes()
    assert f"replaced {page}" in cli("inspect", "-o", page).err
    assert page.read_bytes() == before
    data = page_data(page)
    (model,) = data["models"]
    assert (model["name"], model["step"]) == ("verse", 4)
    assert model["summary"].startswith("trained in ")
    assert " on " in model["summary"]
    assert data["text"] in VERSE
    assert len(data["text"]) <= 32


def test_the_page_of_stories_opens_where_a_head_finds_the_name_that_a_pronoun_means(cli: Cli, tmp_path: Path) -> None:
    cli("import", "stories")
    cli("inspect", "stories-1", "-o", tmp_path / "page.html")
    data = page_data(tmp_path / "page.html")
    layer, head = data["head"]
    assert data["text"][: data["selected"] + 1].endswith('She says: "I am ')
    assert "after She" in data["models"][0]["heads"][layer][head]["phrase"]


def test_the_page_opens_at_a_head_and_at_the_end_of_a_text(cli: Cli, tmp_path: Path) -> None:
    page = tmp_path / "page.html"

    def start(*options: str) -> tuple[int, list[int]]:
        assert cli("inspect", "verse", *options, "-o", page).code == 0
        data = page_data(page)
        return data["selected"], data["head"]

    for layer, head in ((0, 1), (1, 0)):
        options = ("--layer", str(layer), "--head", str(head))
        assert start(*options)[1] == [layer, head]
        assert start(*options, "--text", "winds do") == (7, [layer, head])
    assert start("--head", "1")[1][1] == 1
    assert 16 <= start("--val", "0")[0] < 31


def test_open_shows_the_page(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    page = tmp_path / "my page.html"
    assert cli("inspect", "-o", page).code == cli("inspect", "-o", page, "--open").code == 0
    assert opened == [page.as_uri()]


def test_other_models_are_added(cli: Cli, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert cli("inspect", "verse", "--steps", "all", "--compare", "verse", "-o", page).code == 0
    assert [model["step"] for model in page_data(page)["models"]] == [4, 2, 4]
    assert cli("inspect", "verse", "--steps", "2,4", "-o", page).code == 0
    assert [model["step"] for model in page_data(page)["models"]] == [4, 2]


def test_weights_can_be_exact(cli: Cli, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert cli("inspect", "--exact", "-o", page).code == 0
    (model,) = page_data(page)["models"]
    assert model["rounding"] == 0
    assert not [name for name, packed in model["weights"].items() if "scale" in packed]


def test_without_its_text_a_run_is_shown_on_generated_text(
    cli: Cli, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(folder / "runs", tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    done = cli("inspect", "verse")
    assert "using generated text instead" in done.err
    assert page_data(tmp_path / "inspect.html")["models"][0]["heads"][0][0]["evidence"]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--layer", "2"], "no layer 2: this model has layers 0 to 1"),
        (["--head", "-1"], "no head -1: this model has heads 0 to 1"),
        (["--steps", "3"], "no checkpoint at step 3; the run has 2, 4"),
        (["--steps", "one"], "--steps one: "),
        (["-o", "no/such/page.html"], "cannot write no/such/page.html: No such file or directory"),
        (["--compare", "nothing"], "nothing"),
        (["--text", ""], "empty"),
    ],
)
def test_wrong_options_are_one_line(cli: Cli, arguments: list[Any], problem: str) -> None:
    assert problem in cli("inspect", "verse", *arguments).error


def test_a_huge_page_needs_force(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.html"
    monkeypatch.setattr("minigpt.cli.inspect.MAX_SIZE", 1)
    assert "--force" in cli("inspect", "-o", page).error
    assert not page.exists()
    assert cli("inspect", "-o", page, "--force").code == 0
    assert page.exists()


@pytest.mark.parametrize(
    ("options", "limit", "hint", "command"),
    [
        ([], 1_000, "minigpt attention verse", "attention verse"),
        (["--exact"], 10_000, "leave out --exact", "inspect verse"),
    ],
)
def test_a_model_that_is_too_large_is_one_line_before_any_work(
    cli: Cli,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    limit: int,
    hint: str,
    command: str,
) -> None:
    shutil.copytree(folder / "runs", tmp_path / "runs")  # without the text of the run: an excerpt would be generated
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("minigpt.viewer.page.MAX_WEIGHTS", limit)
    done = cli("inspect", "verse", *options)
    assert done.err == f"minigpt: {done.error}\n"
    assert hint in done.error
    assert cli(*command.split()).code == 0


def test_many_checkpoints_are_thinned_out() -> None:
    assert _spread([4]) == [4]
    assert _spread(list(range(8))) == list(range(8))
    some = _spread(list(range(0, 1000, 10)))
    assert (len(some), some[0], some[-1]) == (8, 0, 990)


@pytest.mark.parametrize("command", ["inspect --compare", "eval --with"])
def test_a_damaged_other_run_gets_no_option_for_the_first(cli: Cli, tmp_path: Path, command: str) -> None:
    other = tmp_path / "other"
    shutil.copytree("runs/verse", other)
    (other / "checkpoints/step-00000004/tokenizer.json").write_bytes(b"\xff")
    name, option = command.split()
    error = cli(name, "verse", option, other).error
    assert "tokenizer.json" in error
    assert "--checkpoint" not in error
    assert "--checkpoint" in cli(name, other).error
