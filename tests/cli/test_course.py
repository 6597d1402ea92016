"""`minigpt course`."""

import json
from pathlib import Path

import pytest
from command_line import Cli


def test_the_list_shows_what_was_done(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli("course").out.count("\n") == 11
    ran = cli("course", "run", "3").out
    assert 'score of "fox" and "brown"' in ran
    assert "outside" not in ran
    Path("mygpt.py").write_text("def vocabulary(text): return sorted(set(text))\n")
    problem = cli("course", "check", "1").error
    assert "chapter 1: mygpt.py has no encode" in problem
    lines = cli("course").out.splitlines()
    assert next(line for line in lines if line.startswith("3 ")).endswith("run")
    assert not any(line.endswith("checked") for line in lines)


def test_a_number_outside_the_book_is_marked(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from minigpt.course import letters

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(letters, "W_K", [[0.0] * 5] * 5)
    result = cli("course", "run", "3")
    assert result.out.count("outside") == 3  # the score of "fox" and itself stays 0
    assert "3 of 4 outside the range of the book" in result.err


def test_mistakes_get_a_line(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli("course", "run", "11").code == 2
    assert "none.py is not a file" in cli("course", "check", "1", "none.py").error
    Path("runs").mkdir()
    Path("runs/course.json").write_text("{")
    assert "runs/course.json is damaged; remove it to start again" in cli("course").error
    Path("runs/course.json").write_text(json.dumps({"run": {}, "check": ["2"]}))
    assert "Average the past" in cli("course").out


def test_the_text_is_that_of_the_models(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cli("course", "text")
    own, theirs = (cli("data", "info", text, "--json").json for text in ("stories.txt", "builtin:stories"))
    assert own["fingerprint"] == theirs["fingerprint"]
    assert "it exists; to replace it, add --force" in cli("course", "text").error
    assert cli("course", "text", "--force").code == 0
