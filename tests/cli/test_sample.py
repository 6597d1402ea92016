"""`minigpt sample`."""

import errno
import gzip
import itertools
import json
import math
import os
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import VERSE, Cli

from minigpt.interpret.copied import match_lengths
from minigpt.sampling import generate as sampling
from minigpt.storage.checkpoint import load_checkpoint
from minigpt.text.dataset import reload_dataset

SEED = ("--seed", 3)
pytestmark = pytest.mark.usefixtures("at_home")


def test_a_seed_repeats_a_sample(cli: Cli) -> None:
    first = cli("sample", "-p", "and ", "-l", 20, "--seed", 3)
    assert (first.code, first.err) == (0, "")
    assert first.out.startswith("and ")
    assert len(first.out) == len("and ") + 20 + 1
    assert cli("sample", "-p", "and ", "-l", 20, "--seed", 3, "--no-stream") == first
    assert cli("sample", "-p", "and ", "-l", 20, "--seed", 4) != first


@pytest.mark.parametrize(
    "run", ["verse-1", "runs/verse-1", "runs/verse-1/", "last", "runs/verse-1/checkpoints/step-00000004"]
)
def test_a_run_is_found_by_name_folder_and_last(cli: Cli, run: str) -> None:
    wanted = cli("sample", "verse-1@4", *SEED, "-l", 5)
    assert wanted.code == 0
    assert cli("sample", run, *SEED, "-l", 5) == wanted


def test_a_copy_of_a_checkpoint_is_enough(
    cli: Cli, at_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = at_home / "runs/verse-1/checkpoints/step-00000004"
    for file in original.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    monkeypatch.chdir(tmp_path)
    assert cli("sample", ".", *SEED, "-l", 9).out == cli("sample", original, *SEED, "-l", 9).out


def test_the_prompt_comes_from_an_option_a_file_or_standard_input(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("and summer", encoding="utf-8")
    (tmp_path / "p.gz").write_bytes(gzip.compress(b"and summer"))
    wanted = cli("sample", *SEED, "-p", "and summer", "-l", 5)
    assert cli("sample", *SEED, "--file", tmp_path / "p.txt", "-l", 5) == wanted
    assert cli("sample", *SEED, "--file", tmp_path / "p.gz", "-l", 5) == wanted
    assert cli("sample", *SEED, "--file", "-", "-l", 5, stdin=b"and summer") == wanted
    assert len(cli("sample", "-p", "", "-l", 5).out) == 5 + 1


def test_an_unknown_character_is_an_error_or_is_skipped_or_replaced(cli: Cli) -> None:
    error = cli("sample", "-p", "May é").error
    for part in ("'é'", "U+00E9", "--unknown"):
        assert part in error
    for choice, prompt in (("skip", "May "), ("replace", "May e")):
        out = cli("sample", "-p", "May é", "--unknown", choice, "-l", 3, "-t", 0).out
        assert out.startswith(prompt)
        assert len(out) == len(prompt) + 3 + 1


def test_a_prompt_longer_than_the_context_says_how_much_is_used(cli: Cli) -> None:
    done = cli("sample", "-p", VERSE[:40], "-l", 4)
    assert (done.code, len(done.out)) == (0, 45)
    assert re.search(r"last 16 of 40\b", done.err)


def test_a_text_in_place_of_a_run_gets_the_hint_to_use_a_prompt(cli: Cli) -> None:
    for text in ("DUCHESS:", "Once upon a time", "class Dog(object):", "too long for a name " * 20):
        prompt = cli("sample", text).error.partition("--prompt ")[2]
        assert shlex.split(prompt) == [text]
        assert cli("sample", "-l", 1, "--unknown", "skip", "--prompt", *shlex.split(prompt)).code == 0
    assert "--prompt" not in cli("sample", "nobody").error


def test_json_is_one_document_with_log_probabilities(cli: Cli, tmp_path: Path) -> None:
    arguments = ["sample", *SEED, "--json", "-p", "do", "-n", 3, "-l", 7, "--top-k", 5]
    found = cli(*arguments).json
    assert (found["prompt"], len(found["samples"])) == ("do", 3)
    assert (found["settings"]["length"], found["settings"]["top_k"]) == (7, 5)
    for sample in found["samples"]:
        assert sample["text"] == "".join(char["text"] for char in sample["characters"])
        assert len(sample["characters"]) == 7
        assert all(-math.inf < char["logprob"] <= 0 for char in sample["characters"])
    to_file = cli(*arguments, "-o", tmp_path / "s.json")
    assert (to_file.code, to_file.out) == (0, "")
    assert json.loads((tmp_path / "s.json").read_text(encoding="utf-8")) == found


def test_several_samples_are_separated_and_can_go_to_a_file(cli: Cli, tmp_path: Path) -> None:
    shown = cli("sample", *SEED, "-n", 3, "-l", 6, "-p", "do").out
    parts = shown.removesuffix("\n").split("\n--------\n")
    assert len(parts) == 3
    assert all(part.startswith("do") and len(part) == 8 for part in parts)
    assert cli("sample", *SEED, "-n", 3, "-l", 6, "-p", "do", "-o", tmp_path / "s.txt").out == ""
    assert (tmp_path / "s.txt").read_bytes().decode() == shown


def test_a_file_that_cannot_be_written_is_reported_before_the_model_is_loaded(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("kept")
    monkeypatch.setattr("minigpt.storage.checkpoint.load_checkpoint", lambda *_: pytest.fail("loaded"))
    problems = {
        tmp_path: "Is a directory",
        tmp_path / "file/x": "Not a directory",
        tmp_path / "no/x": "No such file",
    }
    for out, problem in problems.items():
        assert f"cannot write {out}: {problem}" in cli("sample", "-o", out).error

    def refused(dir: Path) -> None:  # root may write everywhere
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr("tempfile.TemporaryFile", refused)
    for out in (tmp_path / "new", tmp_path / "file"):
        assert f"cannot write {out}: Read-only file system" in cli("sample", "-o", out).error
    assert (tmp_path / "file").read_text() == "kept"
    assert not (tmp_path / "new").exists()


def test_sample_opens_no_file_that_the_checkpoint_names(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checkpoint may come from a stranger."""
    monkeypatch.setattr("minigpt.text.sources.open_corpus", lambda *_, **__: pytest.fail("opened"))
    assert cli("sample", "-l", 3).code == 0


def test_ctrl_c_keeps_the_text_generated_so_far(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments, out = ["sample", *SEED, "--json", "-n", 2, "-l", 9, "-p", "do", "-o"], tmp_path / "s"
    generate = sampling.generate

    def texts() -> list[str]:
        return [sample["text"] for sample in json.loads(out.read_text(encoding="utf-8"))["samples"]]

    def interrupted(*args: Any, **kwargs: Any) -> Iterator[Any]:
        yield from itertools.islice(generate(*args, **kwargs), 10)
        raise KeyboardInterrupt

    assert cli(*arguments, out).code == 0
    whole = texts()
    monkeypatch.setattr(sampling, "generate", interrupted)
    assert "it exists; to replace it, add --force" in cli(*arguments, out).error
    assert texts() == whole
    done = cli(*arguments, out, "--force")
    assert done.code == 130
    assert "Ctrl-C" in done.err
    assert texts() == [text[:5] for text in whole]


def test_a_stop_string_ends_a_sample_before_it(cli: Cli) -> None:
    whole = cli("sample", "-p", "", "-l", 60, *SEED).out.removesuffix("\n")
    stop = whole[20:22]
    shown = cli("sample", "-p", "", "-l", 60, *SEED, "--stop", "never", "--stop", stop).out
    assert shown == whole[: whole.index(stop)] + "\n"


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *[("-t", "-1"), ("-t", "nan"), ("-t", "inf"), ("-l", "0"), ("--top-p", "2"), ("--top-p", "0")],
        *[("--top-k", "-1"), ("--min-p", "1.5"), ("--seed", "-1")],
        ("--file", "nosuch"),
    ],
)
def test_a_value_out_of_range_is_one_line_that_names_it(cli: Cli, option: str, value: str) -> None:
    error = cli("sample", option, value).error
    assert value in error or option.lstrip("-").replace("-", "_") in error


def test_a_prompt_without_a_character_of_the_vocabulary_is_said_to_be_left_out(cli: Cli) -> None:
    done = cli("sample", "-p", "Ж", "--unknown", "skip", "-l", 5, "--seed", 1)
    assert done.err == "the prompt has no character of the vocabulary: starting without it\n"
    assert done.out == cli("sample", "-p", "", "-l", 5, "--seed", 1).out == cli("sample", "-l", 5, "--seed", 1).out


@pytest.mark.parametrize("is_terminal", [True, False])
def test_control_characters_reach_a_pipe_but_no_terminal(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_terminal: bool
) -> None:
    """A model trained on terminal recordings generates escape sequences, and a stranger's model may on purpose."""
    text = "a\x1b[2Jb\x07\n\tc\u202e"
    chars = [sampling.SampledChar(0, char, -0.5) for char in text]
    monkeypatch.setattr(sampling, "generate", lambda *_, **__: iter(chars))
    monkeypatch.setattr(type(sys.stdout), "isatty", lambda self: is_terminal)
    expected = r"a\u001b[2Jb\u0007" + "\n\tc" + r"\u202e" if is_terminal else text
    prompt = "\x1b[1mdo\x1b[22m" if is_terminal else "do"  # bold, to set it off
    assert cli("sample", "-p", "do").out == f"{prompt}{expected}\n"
    assert cli("sample", "-p", "do", "-n", 1, "--no-stream").out == f"do{expected}\n"
    assert cli("sample", "-p", "do", "--json").json["samples"][0]["text"] == text
    cli("sample", "-p", "do", "-o", tmp_path / "s.txt")
    assert (tmp_path / "s.txt").read_bytes().decode() == f"do{text}\n"


@pytest.mark.parametrize("name", ["verse-1", "cjk"])
def test_copied_has_the_length_of_each_match(cli: Cli, at_home: Path, name: str) -> None:
    command = ["sample", name, *SEED, "--copied", "-l", 30, "-n", 2]
    document = cli(*command, "--json").json
    loaded = load_checkpoint(name)
    data = reload_dataset(loaded.config.data, loaded.metadata.fingerprint, loaded.tokenizer)
    training = data.tokenizer.decode(data.train)
    for sample in document["samples"]:
        assert sample["copied"] == match_lengths([sample["text"]], training)[0]
        assert len(sample["copied"]) == len(sample["text"])
    total = sum(len(sample["text"]) for sample in document["samples"])
    assert document["copied"]["samples"]["characters"] == total
    if name == "verse-1":  # two lines that repeat: an excerpt of 30 characters is all in the training text
        assert document["copied"]["validation"]["shares"] == [
            {"least": least, "share": share} for least, share in ((10, 1.0), (20, 1.0), (40, 0.0))
        ]
    done = cli(*command)
    assert done.out.startswith(cli("sample", name, *SEED, "-l", 30, "-n", 2).out)
    for row in document["copied"]["samples"]["shares"]:
        assert re.search(rf"^copied in runs of {row['least']}\+ +{row['share']:.1%} ", done.out, re.M)


def test_copied_needs_the_text_of_the_run(cli: Cli, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINIGPT_CACHE", "empty")
    Path("verse.txt").write_text("another text\n" * 9, encoding="utf-8")
    assert cli("sample", run, "--copied").error == (
        "verse.txt is not the text that this run was trained on; put the text of the run back where it was"
    )
