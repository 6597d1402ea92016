"""`minigpt inspect`."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pages
import pytest
from command_line import VERSE, Cli
from forgery import MODEL, forge
from safetensors.numpy import load, save

import minigpt
from minigpt.paths import FRAMES
from minigpt.storage import checkpoint as storage
from minigpt.storage.metadata import METADATA
from minigpt.storage.runs import step_folder
from minigpt.viewer import film

pytestmark = pytest.mark.usefixtures("folder")


def page_data(path: Path) -> Any:
    return pages.page_data(path.read_text(encoding="utf-8"))


@pytest.fixture
def run(folder: Path, tmp_path: Path) -> Path:
    """A copy of `verse` that a test may change: a frame of step 2, and a checkpoint of step 4."""
    copy = Path(shutil.copytree("runs/verse", tmp_path / "copy"))
    (copy / FRAMES).mkdir(exist_ok=True)
    return Path(shutil.move(step_folder(copy, 2), step_folder(copy, 2, FRAMES))).parents[1]


def test_the_same_run_gives_the_same_page(cli: Cli, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    done = cli("inspect", "-o", page)
    assert done.out == ""
    assert f"wrote {page}, {page.stat().st_size / 1e6:.2f} MB" in done.err
    before = page.read_bytes()
    assert f"replaced {page}" in cli("inspect", "-o", page).err
    assert page.read_bytes() == before
    data = page_data(page)
    model = data["models"][0]
    assert (model["name"], model["step"]) == ("verse", 4)
    assert model["summary"].startswith("trained in ")
    assert " on " in model["summary"]
    assert data["text"] in VERSE
    assert len(data["text"]) <= 32


@pytest.mark.slow
def test_the_page_of_stories_opens_where_a_head_finds_the_name_that_a_pronoun_means(
    cli: Cli, tmp_path: Path, empty_folder: Path
) -> None:
    cli("import", "stories")
    assert "only one step (training keeps more)" in cli("inspect", "stories-1", "-o", tmp_path / "page.html").err
    data = page_data(tmp_path / "page.html")
    layer, head = data["head"]
    assert data["text"][: data["selected"] + 1].endswith('He says: "I am ')
    assert "after He" in data["models"][0]["heads"][layer][head]["phrase"]
    text = data["text"]
    cli("inspect", "stories-1", "--text", text, "--force", "-o", tmp_path / "page.html")
    assert minigpt.load("stories-1").inspect(text).html == (tmp_path / "page.html").read_text(encoding="utf-8")


@pytest.mark.slow
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
    page = tmp_path / "my page.html"
    for is_open in (True, False):  # False: there is no browser
        monkeypatch.setattr("webbrowser.open", lambda address, is_open=is_open: opened.append(address) or is_open)
        command = ("inspect", "verse", "--steps", "none", "-o", page)
        assert cli(*command).err.endswith("; open it in a browser\n")
        assert cli(*command, "--open").err.endswith("; open it in a browser\n") != is_open
    assert opened == [page.as_uri()] * 2


@pytest.mark.slow
def test_other_models_are_added(cli: Cli, tmp_path: Path) -> None:
    page = tmp_path / "page.html"

    def steps(*options: str, run: str = "verse") -> list[int]:
        assert cli("inspect", run, *options, "-o", page).code == 0
        return [model["step"] for model in page_data(page)["models"]]

    assert steps() == steps("--steps", "2") == [4, 2]
    assert steps("--with", "verse") == [4, 2, 4]
    assert steps("--steps", "none") == [4]
    assert steps(run="verse@2") == [2, 4]
    assert steps("--steps", "4") == [4]


def put(source: str) -> Callable[[Path, Path], object]:
    """Replace a frame by a checkpoint of another run."""

    def replace(home: Path, frame: Path) -> None:
        shutil.rmtree(frame)
        shutil.copytree(home / source, frame)

    return replace


def make_infinite(home: Path, frame: Path) -> None:
    """Make weights so large that what they compute is not finite."""
    weights = {name: array * np.float32(1e20) for name, array in load((frame / MODEL).read_bytes()).items()}
    forge(frame, {MODEL: save(weights)})


def make_file(home: Path, frame: Path) -> None:
    shutil.rmtree(frame)
    frame.write_bytes(b"")


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda home, frame: (frame / MODEL).write_bytes(b""), "model.safetensors has changed"),
        (lambda home, frame: (frame / METADATA).unlink(), "cannot read"),
        (lambda home, frame: os.truncate(frame / MODEL, 1 << 40), "model.safetensors is larger than"),
        (make_file, "cannot read"),
        (make_infinite, "not finite"),
        (put("runs/verse-1/checkpoints/step-00000002"), "is not of this run: model.n_layer is 2 in the run but 1 now"),
        (
            put("runs/cjk/checkpoints/step-00000002"),
            "is not of this run: data.tokenizer is char in the run but byte now",
        ),
    ],
)
def test_a_moment_that_cannot_be_shown_is_left_out_of_the_film(
    cli: Cli, home: Path, run: Path, damage: Callable[[Path, Path], object], problem: str
) -> None:
    damage(home, step_folder(run, 2, FRAMES))
    done = cli("inspect", run, "-o", run / "page.html")
    assert done.code == 0, done.err
    assert "step 2 is left out of the film: " in done.err
    assert problem in done.err
    assert [model["step"] for model in page_data(run / "page.html")["models"]] == [4]
    error = cli("inspect", run, "--steps", "2").error
    assert problem in error
    assert "no run is named" not in error


def test_a_checkpoint_pruned_meanwhile_is_left_out_or_replaced_by_its_frame(
    cli: Cli, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As training does while `inspect` reads the checkpoints."""
    saved_steps = film.saved_steps

    def pruned(of: Path) -> dict[int, Path]:
        saved = saved_steps(of)
        for step in (2, 3):
            shutil.rmtree(step_folder(of, step), ignore_errors=True)
        return saved

    for step in (2, 3):
        shutil.copytree(step_folder(run, 2, FRAMES), step_folder(run, step))
    monkeypatch.setattr(film, "saved_steps", pruned)
    done = cli("inspect", run, "-o", run / "page.html")
    assert done.code == 0, done.err
    assert "step 3 is left out of the film: " in done.err
    assert [model["step"] for model in page_data(run / "page.html")["models"]] == [4, 2]


def test_few_of_many_moments_are_read(cli: Cli, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, count = storage._read_arrays, 0

    def counted(*arguments: Any) -> Any:
        nonlocal count
        count += 1
        return read(*arguments)

    monkeypatch.setattr(storage, "_read_arrays", counted)
    for step in range(5, 40):
        shutil.copytree(step_folder(run, 2, FRAMES), step_folder(run, step, FRAMES))
    (run / FRAMES / "step-0000000000000000001").mkdir()  # not how training writes a step
    assert "film" not in cli("inspect", run, "-o", run / "page.html").err
    assert 12 < count < 30
    count = 0
    assert "the page has room for" in cli("inspect", run, "--steps", ",".join(map(str, range(5, 30)))).error
    assert count == 1


def test_a_film_that_does_not_fit_is_left_out_and_says_so(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minigpt.viewer.film.MOST_BYTES", 1000)
    assert "no film: the weights of another step" in cli("inspect", "verse", "-o", tmp_path / "page.html").err
    assert "the page has room for " in cli("inspect", "verse", "--steps", "2").error
    assert [model["step"] for model in page_data(tmp_path / "page.html")["models"]] == [4]


def test_a_run_with_one_moment_has_no_film_and_says_so(cli: Cli, tmp_path: Path) -> None:
    run = tmp_path / "copy"
    shutil.copytree("runs/verse", run)
    shutil.rmtree(run / "checkpoints/step-00000002")
    assert "no film: " in cli("inspect", run, "-o", tmp_path / "page.html").err
    checkpoint = run / "checkpoints/step-00000004"
    shutil.copytree(checkpoint, tmp_path / "alone")
    assert "film" not in cli("inspect", tmp_path / "alone", "-o", tmp_path / "page.html").err
    assert (
        "a checkpoint folder has no other steps; name its run"
        in cli("inspect", tmp_path / "alone", "--steps", "2").error
    )


def test_without_its_text_a_run_is_shown_on_generated_text(
    cli: Cli, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(folder / "runs", tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINIGPT_CACHE", "empty")
    done = cli("inspect", "verse")
    assert "using generated text instead" in done.err
    assert page_data(tmp_path / "inspect.html")["models"][0]["heads"][0][0].keys() == {
        "phrase",
        "share",
        "uniform",
        "breaks",
    }


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--layer", "2"], "there is no such head: this model has layers 0 to 1, with heads 0 to 1"),
        (["--head", "-1"], "there is no such head"),
        (["--steps", "3"], "no weights of step 3; the run has 2, 4"),
        (["--steps", "one"], "--steps one: "),
        (["-o", "no/such/page.html"], "cannot write no/such/page.html: No such file or directory"),
        (["--with", "nothing"], "nothing"),
        (["--text", ""], "empty"),
    ],
)
def test_wrong_options_are_one_line(cli: Cli, arguments: list[Any], problem: str) -> None:
    assert problem in cli("inspect", "verse", *arguments).error


def test_a_model_that_is_too_large_is_one_line_before_any_work(
    cli: Cli, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(folder / "runs", tmp_path / "runs")  # without the text of the run: an excerpt would be generated
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("minigpt.viewer.page.MAX_WEIGHTS", 1_000)
    done = cli("inspect", "verse")
    assert done.err == f"minigpt: {done.error}\n"
    assert "a page has room for" in done.error


def test_a_quarantined_checkpoint_has_a_page(cli: Cli, tmp_path: Path) -> None:
    run = tmp_path / "copy"
    shutil.copytree("runs/verse", run)
    checkpoint = (run / "checkpoints/step-00000004").rename(run / "checkpoints/quarantined-step-00000004-1f3a5c7e")
    assert cli("inspect", checkpoint, "-o", tmp_path / "page.html").code == 0
    assert [model["step"] for model in page_data(tmp_path / "page.html")["models"]] == [4, 2]


@pytest.mark.parametrize("command", ["inspect verse --with", "inspect"])
def test_the_error_of_a_damaged_run_names_the_command_that_checks_it(cli: Cli, tmp_path: Path, command: str) -> None:
    other = tmp_path / "other"
    shutil.copytree("runs/verse", other)
    (other / "checkpoints/step-00000004/tokenizer.json").write_bytes(b"\xff")
    error = cli(*command.split(), other).error
    assert "tokenizer.json" in error
    assert error.endswith(f"minigpt runs verify {other}")
