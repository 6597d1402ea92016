"""The course: its code, its numbers, its solutions and its figures."""

import os
import re
import signal
import statistics
import sys
from pathlib import Path
from typing import Any

import course_book
import pytest
import torch
from course_pages import assembled, blocks, page
from random_models import TEXT, checkpoint

from minigpt.course import letters, networks
from minigpt.course.chapters import CHAPTERS, SEEDS, Chapter, book_range
from minigpt.course.worker import check
from minigpt.errors import UserError
from minigpt.interpret.extract import ablate_heads
from minigpt.model.gpt import GPT
from minigpt.model.load import load_transformer
from minigpt.storage.checkpoint import Checkpoint, load_checkpoint
from minigpt.text.sources import STORIES
from minigpt.text.stories import stories
from minigpt.training.evaluate import evaluate
from minigpt.training.loop import Training


@pytest.fixture
def mygpt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "mygpt.py"
    file.write_text(assembled(), encoding="utf-8")
    return file


def test_the_code_of_all_chapters_agrees_with_minigpt(mygpt: Path) -> None:
    answer = check(11, mygpt)
    assert answer["problem"] == ""
    assert list(answer["passed"]) == list(range(1, 12))
    assert len(mygpt.read_text().splitlines()) < 300
    imports = set(re.findall(r"^(?:import|from) (\w+)", mygpt.read_text(), flags=re.MULTILINE))
    assert imports == {"copy", "math", "torch"}


def test_it_gives_the_logits_of_a_trained_classic_model(mygpt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(networks.BASE, "train.steps", 2)
    networks.trained("9", 1, {**networks.YOURS, "model.n_layer": 2, "train.steps": 2})
    answer = check(9, mygpt)
    assert answer["problem"] == ""
    assert "the logits of runs/course-9" in answer["passed"][9]


@pytest.mark.slow
@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda chapter: str(chapter.number))
def test_solutions_run(mygpt: Path, chapter: Chapter, monkeypatch: pytest.MonkeyPatch) -> None:
    found = blocks(page(chapter), "")
    solutions = [code for code in found if "assert" in code]
    assert len(solutions) >= 2
    monkeypatch.syspath_prepend(mygpt.parent)
    for code in solutions:
        monkeypatch.delitem(sys.modules, mygpt.stem, raising=False)
        with torch.random.fork_rng(devices=[]):
            exec(compile(code, chapter.page, "exec"), {})  # noqa: S102


EXPERIMENTS = [chapter for chapter in CHAPTERS if blocks(page(chapter), f"try{chapter.number}.py")]


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # they leave stories.txt to Python to close
@pytest.mark.parametrize("chapter", EXPERIMENTS, ids=lambda chapter: str(chapter.number))
def test_experiments_run(
    mygpt: Path, chapter: Chapter, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They train for 12 steps here, and write 9 letters."""
    (code,) = blocks(page(chapter), f"try{chapter.number}.py")
    code = re.sub(r"(steps(?:=|, film = ))\d+", r"\g<1>12", code).replace(", 300)", ", 9)")
    mygpt.with_name("stories.txt").write_text("".join(stories(*STORIES)), encoding="utf-8")
    monkeypatch.syspath_prepend(mygpt.parent)
    monkeypatch.delitem(sys.modules, mygpt.stem, raising=False)
    with torch.random.fork_rng(devices=[]):
        exec(compile(code, chapter.page, "exec"), {})  # noqa: S102
    printed = capsys.readouterr().out
    assert re.search(r"\d", printed), printed
    assert "nan" not in printed


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # as above
@pytest.mark.skipif(not os.environ.get("MINIGPT_TRAIN_COURSE"), reason="needs MINIGPT_TRAIN_COURSE, and 25 minutes")
@pytest.mark.parametrize("seed", [1, 2, 6])
def test_the_readers_gpt_has_the_printed_loss(
    mygpt: Path, seed: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With `try9.py`, as the chapter says. Seed 6 is none of the book's."""
    (code,) = blocks(page(CHAPTERS[8]), "try9.py")
    mygpt.with_name("stories.txt").write_text("".join(stories(*STORIES)), encoding="utf-8")
    monkeypatch.syspath_prepend(mygpt.parent)
    monkeypatch.delitem(sys.modules, mygpt.stem, raising=False)
    with torch.random.fork_rng(devices=[]):
        exec(compile(code.replace("manual_seed(1)", f"manual_seed({seed})"), "try9.py", "exec"), {})  # noqa: S102
    printed = capsys.readouterr().out
    loss = float(printed.rpartition("\r")[2].split()[0])
    low, high = book_range(CHAPTERS[8].recorded()["gpt"])
    assert low <= loss <= high, printed


@pytest.mark.parametrize("number", [1, 3, 4])
def test_what_needs_no_training_is_as_recorded(number: int) -> None:
    chapter = CHAPTERS[number - 1]
    expected = {name: values[0] for name, values in chapter.recorded().items()}
    assert chapter.measure(SEEDS[0]) == pytest.approx(expected, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("number", [2, 5])
def test_what_trains_for_seconds_is_as_recorded(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other machines round differently, so the values are compared with the range of the book."""
    monkeypatch.chdir(tmp_path)
    chapter = CHAPTERS[number - 1]
    values, recorded = chapter.measure(SEEDS[0]), chapter.recorded()
    assert [name for name, part in chapter.numbers.items() if part.is_outside(values[name], recorded[name])] == []


def test_numbers_have_the_values_of_five_seeds() -> None:
    for chapter in CHAPTERS:
        recorded = chapter.recorded()
        assert set(recorded) == set(chapter.numbers)
        assert all(len(values) == len(SEEDS) for values in recorded.values())


def test_a_range_is_wider_than_the_seeds() -> None:
    assert book_range([1.0, 2.0, 1.5]) == (0.5, 2.5)
    assert book_range([3.0, 3.0]) == (3.0, 3.0)


def test_pages_get_the_recorded_numbers() -> None:
    chapter = CHAPTERS[-1]
    number, values = chapter.numbers["gpt"], chapter.recorded()["gpt"]
    filled = course_book.fill("1.0 to 2.0<!--n:gpt seeds--> and 1.0 to\n2.0<!--n:gpt range-->.", chapter)
    seeds = f"{min(values):.3f} to {max(values):.3f}"
    assert filled == f"{seeds}<!--n:gpt seeds--> and {number.show_range(values)}<!--n:gpt range-->."
    assert number.show_range(values) != seeds, "the range of the book is wider"


def test_chapter_6_trains_no_longer_than_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """It took more than a minute on two slow cores."""
    calls: dict[str, int] = {}

    def trained(name: str, seed: int, changes: dict[str, Any]) -> str:
        calls[name] = changes["train.steps"]
        return name

    monkeypatch.setattr(networks, "trained", trained)
    monkeypatch.setattr(networks, "loss", lambda name: 1.0 + len(name))
    monkeypatch.setattr(letters, "STEPS", 1)
    assert set(networks.positions(1)) == set(CHAPTERS[5].numbers)
    assert list(calls) == ["6-rotary", "6-learned", "6-none", "6-rotary-one-layer", "6-none-one-layer"]
    assert sum(calls.values()) == 1250


def test_chapter_10_measures_the_copying_head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    trained = networks.trained
    monkeypatch.setattr(networks, "trained", lambda *key_and_changes: trained(*key_and_changes[:2], SHORT))
    numbers, recorded = networks.learned(1), CHAPTERS[9].recorded()
    assert set(numbers) == set(recorded)
    assert round(numbers["uniform"], 6) == recorded["uniform"][0], "it depends only on the text"
    assert numbers["copy 0"] == pytest.approx(numbers["copy"], rel=1e-3), "the model has hardly learned"
    assert numbers["copy 0"] != numbers["copy"]
    assert numbers["least"] <= numbers["without copy"] <= numbers["most"]

    def attending_to_all(checkpoint: Checkpoint) -> GPT:
        model = load_transformer(checkpoint)
        for parameter in model.parameters():
            parameter.data.zero_()
        return model

    monkeypatch.setattr(networks, "load_transformer", attending_to_all)
    changed = networks.learned(1)
    assert changed["copy"] == pytest.approx(numbers["uniform"])
    assert changed["copy 0"] != pytest.approx(numbers["uniform"], rel=1e-3)


SHORT = {"model.context": 128, "model.n_layer": 1, "optim.lr": 1e-6, "optim.muon_lr": 1e-6, "train.steps": 1}


def test_the_cost_of_a_head_is_the_rise_of_the_loss_without_it() -> None:
    loaded = checkpoint()
    model, ids = load_transformer(loaded), loaded.tokenizer.encode(TEXT)
    windows = [ids[:30], ids[30:60]]

    def mean_loss() -> float:
        return statistics.fmean(evaluate(model, window, loaded.tokenizer).loss for window in windows)

    costs, usual = networks.head_costs(model, loaded.tokenizer, windows), mean_loss()
    with ablate_heads(model, {(1, 0)}):
        assert costs[1, 0].item() == pytest.approx(mean_loss() - usual, abs=1e-6)
    assert costs.shape == (2, 2)
    assert len(costs.unique()) == 4


def test_a_run_of_other_settings_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    networks.trained("8", 1, {"train.steps": 2, "model.n_layer": 1})
    with pytest.raises(UserError, match="runs/course-8 has other settings than this chapter needs; rename it"):
        networks.trained("8", 1, {"train.steps": 3, "model.n_layer": 1})
    again = networks.trained("8", 1, {"train.steps": 2, "model.n_layer": 1})
    assert again.metadata.step == 2


def test_an_interrupted_chapter_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    changes = {"train.steps": 4, "train.eval_every": 1, "model.n_layer": 1}
    whole = networks.trained("8", 1, changes)
    evaluate = Training.evaluate

    def interrupt(training: Training, *probes: Any) -> bool:
        is_best = evaluate(training, *probes)
        if training.state.step == 2:
            signal.raise_signal(signal.SIGINT)
        return is_best

    monkeypatch.setattr(Training, "evaluate", interrupt)
    with pytest.raises(KeyboardInterrupt):
        networks.trained("8", 2, changes)
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    stopped = load_checkpoint("course-8-seed-2", "last")
    assert 0 < stopped.metadata.step < 4
    assert networks.trained("8", 2, changes).metadata.step == whole.metadata.step == 4
