"""`minigpt course`."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from command_line import Cli

from minigpt.cli.course import LAST_CHAPTER
from minigpt.course import chapters
from minigpt.course.chapters import CHAPTERS
from minigpt.course.check import Answer

pytestmark = pytest.mark.usefixtures("empty_folder")


def test_the_chapters_are_listed_and_measured(cli: Cli) -> None:
    assert cli("course").out.count("\n") == 13
    assert [chapter["number"] for chapter in cli("course", "--json").json] == list(range(1, 13))
    ran = cli("course", "run", "3").out
    assert 'score of "fox" and "brown"' in ran
    assert "outside" not in ran
    found = cli("course", "run", "3", "--json").json
    assert (found["chapter"], found["seed"], found["measured"]["brown"], found["course"]["brown"]) == (3, 1, 5, [5] * 5)


def test_a_check_shows_what_agrees_and_what_does_not(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "no file none.py here; go to its folder" in cli("course", "check", "1", "none.py").error
    assert "--json is an option of" in cli("course", "--json", "check", "1").err
    Path("mygpt.py").write_text("")
    problem = "chapter 2: mygpt.py has no may_see"
    answer = Answer(passed={1: ["a", "b"], 2: []}, problem=problem, notices=["skipped c"])
    monkeypatch.setattr("minigpt.course.check.check", lambda *_: answer)
    again = "to train it again, rename it, then type: minigpt course run 2"
    shown = cli("course", "check", "2")
    assert (shown.code, shown.out, shown.err) == (1, " 1  agrees: a, b\n", f"skipped c\n{again}\nminigpt: {problem}\n")
    written = cli("course", "check", "2", "--json")
    assert (written.code, written.err) == (1, shown.err)
    passed = [{"chapter": 1, "agrees": ["a", "b"]}, {"chapter": 2, "agrees": []}]
    assert json.loads(written.out) == {"passed": passed, "problem": problem}
    answer.problem = ""
    assert cli("course", "check", "2", "--json").json == {"passed": passed, "problem": ""}


def test_a_number_outside_the_range_is_marked(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minigpt.course.letters.W_K", [[0.0] * 5] * 5)
    result = cli("course", "run", "3")
    assert result.out.count("outside") == 3  # the score of "fox" and itself stays 0
    assert "3 of 4 outside the range of the course" in result.err


@pytest.mark.parametrize(("end", "code", "stopped"), [(KeyboardInterrupt(), 130, 1), (SystemExit(143), 143, 0)])
def test_an_interrupted_run_says_how_to_go_on(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, end: BaseException, code: int, stopped: int
) -> None:
    def interrupt(*_: object) -> None:
        raise end

    monkeypatch.setattr(chapters, "CHAPTERS", [replace(CHAPTERS[9], measure=interrupt)] * LAST_CHAPTER)
    ran = cli("course", "run", "10", "--seed", "2")
    assert ran.code == code
    assert ran.err == "to resume: minigpt course run 10 --seed 2\n" + "minigpt: stopped by Ctrl-C\n" * stopped


def test_a_run_of_a_chapter_is_trained_by_it(cli: Cli) -> None:
    assert cli("inspect", "course-11").error.endswith("to create it: minigpt course run 11")


def test_the_text_is_that_of_the_models(cli: Cli) -> None:
    assert cli("course", "text").err.startswith("wrote stories.txt")
    own, theirs = (cli("data", "info", text, "--json").json for text in ("stories.txt", "builtin:stories"))
    assert own["fingerprint"] == theirs["fingerprint"]
    assert "it exists; to replace it, add --force" in cli("course", "text").error
    assert cli("course", "text", "--force").code == 0


@pytest.mark.parametrize("value", ["mygpt.py", "0", "13", "1.5"])
def test_a_value_that_is_no_chapter_is_named(cli: Cli, value: str) -> None:
    for command in ("check", "run"):
        result = cli("course", command, value)
        assert result.code == 2
        assert f"{value} is not a chapter from 1 to 12, as in: minigpt course check 1 mygpt.py" in result.err
    assert len(CHAPTERS) == LAST_CHAPTER
    assert cli("course", "run", 3, "--seed", 2**64).code == 2
