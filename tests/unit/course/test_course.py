"""The course: its code, its numbers, its solutions and its figures."""

import json
import math
import re
import signal
import sys
from pathlib import Path
from typing import Any

import course_book
import course_films
import pytest
import torch
from command_line import called
from course_pages import BLOCK, assembled, blocks, page

from minigpt.course import letters, networks
from minigpt.course.chapters import CHAPTERS, RECORDED, SEEDS, Chapter, Number
from minigpt.course.worker import check, run_file
from minigpt.errors import UserError
from minigpt.storage.checkpoint import load_checkpoint
from minigpt.text.sources import STORIES
from minigpt.text.stories import stories
from minigpt.training.loop import Training


@pytest.fixture
def mygpt(empty_folder: Path) -> Path:
    file = empty_folder / "mygpt.py"
    file.write_text(assembled(), encoding="utf-8")
    return file


def test_the_code_of_all_chapters_agrees_with_minigpt(mygpt: Path) -> None:
    answer = check(12, mygpt)
    assert answer.problem == ""
    assert list(answer.passed) == list(range(1, 13))
    assert len(mygpt.read_text().splitlines()) < 340
    imports = set(re.findall(r"^(?:import|from) (\w+)", mygpt.read_text(), flags=re.MULTILINE))
    assert imports == {"copy", "math", "torch"}


TINY: dict[str, Any] = {"train.steps": 1, "train.batch_size": 4, "model.n_layer": 1, "data.val_fraction": 0.001}
CLASSIC = {**networks.YOURS, **TINY, "model.n_embd": 16}


def test_it_gives_the_logits_of_a_trained_classic_model(mygpt: Path) -> None:
    networks.trained("9", 1, CLASSIC)
    answer = check(9, mygpt)
    assert (answer.problem, answer.notices) == ("", [])
    assert "the logits of runs/course-9" in answer.passed[9]


CHANGES = [{"data.source": "a.txt"}, {"model.family": "lstm"}, {"model.family": "modern"}, {}]


@pytest.mark.parametrize("changes", CHANGES, ids=["other vocabulary", "other network", "other architecture", "damage"])
def test_a_run_of_no_use_is_skipped(mygpt: Path, changes: dict[str, str]) -> None:
    Path("a.txt").write_text("other letters\n" * 500)
    settings = {**CLASSIC, "data.source": "builtin:stories:20000", **networks.BASE, **TINY, **changes}
    if changes.get("model.family") == "lstm":
        del settings["model.position"]
    called(mygpt.parent, "train", "--name", "course-9", *(f"-s{key}={value}" for key, value in settings.items()))
    for file in Path("runs/course-9/checkpoints").glob("*/model.safetensors") if not changes else ():
        file.write_bytes(file.read_bytes()[:-1])
    answer = check(9, mygpt)
    assert answer.problem == ""
    assert answer.passed[9][-1] == "train_gpt(gpt, ids, steps=2, at=at)"
    (notice,) = answer.notices
    assert notice.startswith("skipped runs/course-9: ")


def execute(code: str, name: str) -> None:
    with torch.random.fork_rng(devices=[]):
        exec(compile(code, name, "exec"), {})  # noqa: S102


@pytest.mark.slow
@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda chapter: str(chapter.number))
def test_solutions_run(mygpt: Path, chapter: Chapter, monkeypatch: pytest.MonkeyPatch) -> None:
    found = blocks(page(chapter), "")
    solutions = [code for code in found if "assert" in code]
    assert len(solutions) >= 2
    monkeypatch.syspath_prepend(mygpt.parent)
    for code in solutions:
        monkeypatch.delitem(sys.modules, mygpt.stem, raising=False)
        execute(code, chapter.page)


EXPERIMENTS = [[f"try{number}.py"] for number in (1, 2, 5, 6, 7, 8)]
FILM = ["try9.py", "spectrum.py", "try10.py", "try11.py"]
"""They use what those before them write."""


def test_all_experiments_are_run() -> None:
    found = {title for chapter in CHAPTERS for _, title, _ in BLOCK.findall(page(chapter)) if title.endswith(".py")}
    assert found - {"mygpt.py"} == {title for titles in [*EXPERIMENTS, FILM] for title in titles}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Python closes stories.txt
@pytest.mark.parametrize("titles", [*EXPERIMENTS, FILM], ids=" ".join)
def test_experiments_run(
    mygpt: Path, titles: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They train for 12 steps here, and write 9 letters."""
    mygpt.with_name("stories.txt").write_text("".join(stories(*STORIES)), encoding="utf-8")
    monkeypatch.syspath_prepend(mygpt.parent)
    for title in titles:
        (code,) = [code for chapter in CHAPTERS for code in blocks(page(chapter), title)]
        code = re.sub(r"(steps ?= ?)\d+", r"\g<1>12", code).replace(", 300)", ", 9)")
        monkeypatch.delitem(sys.modules, mygpt.stem, raising=False)
        execute(code, title)
        printed = capsys.readouterr().out
        assert re.search(r"\d", printed), printed
        assert "nan" not in printed
    assert titles != FILM or course_films.LAST.search(printed)


def test_small_numbers_of_the_last_chapters(mygpt: Path) -> None:
    """Chapters 9 to 12 print them; the solutions of these chapters compute others."""
    _, _, ids = letters.text()
    losses = list[list[float]]()
    for start in ("nn.init.normal_(parameter, std=0.02)", "pass"):  # or PyTorch's initial weights
        mygpt.write_text(assembled().replace("nn.init.normal_(parameter, std=0.02)", start), encoding="utf-8")
        module = run_file(mygpt)
        losses.append([])
        for seed in (1, 2, 3):
            torch.manual_seed(seed)
            gpt = module.GPT(52, context=128, n_layer=3, n_head=4, C=128)
            losses[-1].append(module.evaluate(gpt, ids[:4000], 128))
    assert losses[1] == pytest.approx([118, 113, 117], abs=3)
    assert losses[0] == pytest.approx([3.975] * 3, abs=0.1)
    assert [5 / 2**0.5, math.exp(5 / 2**0.5)] == pytest.approx([3.536, 34.3], abs=0.05)


SLOW = [pytest.param(number, marks=pytest.mark.slow) for number in (2, 5)]


@pytest.mark.parametrize("number", [1, 3, 4, *SLOW])
def test_numbers_are_as_recorded(number: int) -> None:
    """Other machines round differently, so the values are compared with the range of the course."""
    chapter = CHAPTERS[number - 1]
    values = chapter.measure(SEEDS[0])
    assert [name for name, part in chapter.numbers.items() if part.is_outside(values[name])] == []


def test_numbers_have_the_values_of_five_seeds() -> None:
    for chapter in CHAPTERS:
        assert all(len(number.values) == len(SEEDS) for number in chapter.numbers.values())
    text = RECORDED.read_text(encoding="utf-8")
    assert course_book.book_text(json.loads(text)) == text
    assert Number("", "", [1.0, 2.0, 1.5]).range() == (0.5, 2.5), "a range is wider than its seeds"
    assert Number("", "", [3.0, 3.0]).range() == (3.0, 3.0)


@pytest.mark.parametrize("number", [6, 7])
def test_a_chapter_measures_its_numbers(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(networks, "trained", lambda name, *_: name)
    monkeypatch.setattr(networks, "loss", len)
    monkeypatch.setattr(letters, "STEPS", 1)
    chapter = CHAPTERS[number - 1]
    assert set(chapter.measure(1)) == set(chapter.numbers)


def test_pages_get_the_recorded_numbers() -> None:
    chapter = CHAPTERS[-1]
    number = chapter.numbers["gpt"]
    values = number.values
    filled = course_book.fill("1.0 to 2.0<!--n:gpt seeds--> and 1.0 to\n2.0<!--n:gpt range-->.", chapter)
    seeds = f"{min(values):.3f} to {max(values):.3f}"
    assert filled == f"{seeds}<!--n:gpt seeds--> and {number.show_range()}<!--n:gpt range-->."
    assert number.show_range() != seeds, "the range of the course is wider"


def test_a_run_of_other_settings_is_refused(empty_folder: Path) -> None:
    networks.trained("8", 1, TINY)
    with pytest.raises(UserError, match="runs/course-8 has other settings than this chapter needs; rename it"):
        networks.trained("8", 1, {**TINY, "train.steps": 3})
    assert networks.trained("8", 1, TINY).metadata.step == 1


@pytest.mark.parametrize(("name", "error"), [("SIGINT", KeyboardInterrupt), ("SIGTERM", SystemExit)])
def test_an_interrupted_chapter_goes_on_where_it_stopped(
    empty_folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, error: type[BaseException]
) -> None:
    changes = {**TINY, "train.steps": 3, "train.eval_every": 1}
    evaluate = Training.evaluate

    def interrupt(training: Training, *probes: Any) -> bool:
        is_best = evaluate(training, *probes)
        if training.state.step == 1:
            signal.raise_signal(getattr(signal, name))
        return is_best

    monkeypatch.setattr(Training, "evaluate", interrupt)
    with pytest.raises(error) as stopped:
        networks.trained("8", 2, changes)
    monkeypatch.setattr(Training, "evaluate", evaluate)
    assert error is KeyboardInterrupt or stopped.value.args == (128 + signal.SIGTERM,)
    assert 0 < load_checkpoint("course-8-seed-2", "last").metadata.step < 3
    assert networks.trained("8", 2, changes).metadata.step == 3
