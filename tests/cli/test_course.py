"""`minigpt course`."""

from dataclasses import replace
from pathlib import Path

import pytest
from command_line import Cli

from minigpt.cli.course import LAST_CHAPTER
from minigpt.course import chapters
from minigpt.course.chapters import CHAPTERS


def test_the_chapters_are_listed_measured_and_checked(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli("course").out.count("\n") == 12
    ran = cli("course", "run", "3").out
    assert 'score of "fox" and "brown"' in ran
    assert "outside" not in ran
    assert "no file none.py here; go to its folder" in cli("course", "check", "1", "none.py").error
    Path("mygpt.py").write_text("def vocabulary(text): return sorted(set(text))\n")
    assert "chapter 1: mygpt.py has no encode" in cli("course", "check", "1").error


def test_a_number_outside_the_book_is_marked(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from minigpt.course import letters

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(letters, "W_K", [[0.0] * 5] * 5)
    result = cli("course", "run", "3")
    assert result.out.count("outside") == 3  # the score of "fox" and itself stays 0
    assert "3 of 4 outside the range of the book" in result.err


def test_an_interrupted_run_says_how_to_go_on(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(chapters, "CHAPTERS", [replace(CHAPTERS[9], measure=interrupt)] * LAST_CHAPTER)
    assert cli("course", "run", "10", "--seed", "2").err == (
        "to go on: minigpt course run 10 --seed 2\nminigpt: stopped by Ctrl-C\n"
    )


def test_a_run_of_a_chapter_is_trained_by_it(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli("inspect", "course-10").error.endswith("to train it: minigpt course run 10")


def test_the_text_is_that_of_the_models(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli("course", "text").err.startswith("wrote stories.txt")
    own, theirs = (cli("data", "info", text, "--json").json for text in ("stories.txt", "builtin:stories"))
    assert own["fingerprint"] == theirs["fingerprint"]
    assert "it exists; to replace it, add --force" in cli("course", "text").error
    assert cli("course", "text", "--force").code == 0


@pytest.mark.parametrize("chapter", range(1, 12))
def test_a_seed_that_is_too_large_is_refused_in_every_chapter(cli: Cli, chapter: int) -> None:
    result = cli("course", "run", chapter, "--seed", 2**64)
    assert result.code == 2
    assert "Traceback" not in result.err


@pytest.mark.parametrize("value", ["mygpt.py", "0", "12", "1.5"])
def test_a_value_that_is_no_chapter_is_named(cli: Cli, value: str) -> None:
    for command in ("check", "run"):
        result = cli("course", command, value)
        assert result.code == 2
        assert f"{value} is not a chapter from 1 to 11, as in: minigpt course check 1 mygpt.py" in result.err
    assert len(CHAPTERS) == LAST_CHAPTER


def test_json(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ran = cli("course", "run", "3", "--json").json
    assert (ran["chapter"], ran["seed"], ran["yours"]["brown"], ran["book"]["brown"]) == (3, 1, 5, [5] * 5)
    assert [chapter["number"] for chapter in cli("course", "--json").json] == [str(n) for n in range(1, 12)]
    monkeypatch.setattr("minigpt.course.check.check", lambda number, file: {1: ["vocabulary(text)"]})
    Path("mygpt.py").write_text("")
    assert cli("course", "check", "1", "--json").json == {"1": ["vocabulary(text)"]}
    assert "put --json at the end" in cli("course", "--json", "check", "1").err
