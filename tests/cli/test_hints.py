"""Hints: what an error tells the user to type works."""

import re
import shlex
from pathlib import Path

import pytest
from command_line import SMALL, VERSE, Cli

from minigpt.cli.hints import error_line, hint
from minigpt.cli.main import _find
from minigpt.cli.options import options_of
from minigpt.errors import (
    CheckpointError,
    DeviceError,
    DivergedError,
    DownloadError,
    EncodingError,
    InsufficientMemoryError,
    RunNotFoundError,
    TrainingError,
    UnknownCharacterError,
    UserError,
)

ROOT = Path(__file__).resolve().parents[2]
RUN = Path("runs/my run")


def follow(arguments: list[str], line: str) -> list[str]:
    """Return the arguments that the hint of a line asks for: a whole command, or more options for `arguments`."""
    if found := re.search(r"minigpt (\w+ .*?)(, or .*)?$", line.removeprefix("minigpt: ")):
        return shlex.split(found[1])
    (options,) = re.findall(r"(?:try|add) (--.*?)(?: or .*)?$", line)
    return [*arguments, *shlex.split(options)]


@pytest.mark.parametrize(
    "arguments",
    [
        "train latin.txt -s train.steps=1",
        "data info latin.txt",
        "eval --file latin.txt --unknown skip",
        "sample --file latin.txt --unknown skip -l 1",
        "sample -p é -l 1",
        "eval --file strange.txt",
        "train verse.txt --name verse-1 -s train.steps=8",
        "train --resume verse-1",
        "train tiny",
    ],
)
def test_the_hinted_command_works(cli: Cli, run: Path, arguments: str) -> None:
    Path("latin.txt").write_bytes((VERSE + "caf\xe9").encode("latin-1"))
    Path("strange.txt").write_text("the ☃ and the ☃☃", encoding="utf-8")
    words = arguments.split()
    line = cli(*words).error
    again = follow(words, line)
    if again[0] == "train" and "--resume" not in again:
        again += SMALL
    if "--resume" in again and "train.steps" not in line:  # a finished run needs a new length
        again += ["-s", "train.steps=6"]
    assert cli(*again).code == 0, (line, again)


@pytest.mark.parametrize(
    ("error", "command", "expected"),
    [
        (DownloadError("p", Path("a b.zip")), "train", "download it yourself and save it as 'a b.zip'"),
        (RunNotFoundError("p", ("a", "my run")), "sample", "available runs: a, 'my run'"),
        (CheckpointError("p", RUN), "sample", "to check its other checkpoints: minigpt runs verify 'my run'"),
        (
            CheckpointError("p", Path("/x/y z/a")),
            "eval",
            "to check its other checkpoints: minigpt runs verify '/x/y z/a'",
        ),
        (CheckpointError("p", RUN), "runs", ""),
        (
            InsufficientMemoryError("p", ("train.micro_batch_size=4",)),
            "train",
            "try --set train.micro_batch_size=4, which changes only rounding and dropout",
        ),
        (DeviceError("p"), "train", "try --set runtime.device=auto"),
        (DeviceError("p"), "eval", "try --device cpu"),
        (DeviceError("p"), "course run", ""),
        (EncodingError("p", "latin-1"), "train", "try --encoding latin-1"),
        (EncodingError("p", "latin-1"), "sample", "try --encoding latin-1"),
        (EncodingError("p", "latin-1"), "compare", ""),
        (UnknownCharacterError("p"), "eval", "add --unknown skip or --unknown replace"),
        (UnknownCharacterError("p"), "course check", ""),
        (TrainingError("p", RUN, 8), "train", "to resume from step 8: minigpt train --resume 'my run'"),
        (
            TrainingError("p", Path("/x/my run")),
            "train",
            "if its folder was moved, pass the new folder to minigpt train --resume",
        ),
        (
            DivergedError("p", Path("runs/x"), 8, ("a.b=c",)),
            "train",
            "to resume from step 8: minigpt train --resume x --set a.b=c, or start a new run with a lower optim.lr",
        ),
        (DivergedError("p", RUN, 8), "train", "start a new run with a lower optim.lr"),
        (UserError("p"), "train", ""),
    ],
    ids=repr,
)
@pytest.mark.skipif("os.name == 'nt'", reason="needs POSIX")
def test_the_hint_of_an_error(error: UserError, command: str, expected: str) -> None:
    found, names = _find(command.split())
    assert hint(error, " ".join(names), options_of(found)) == expected


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("train verse-1", "no file is named 'verse-1'; it is a run; to resume it: minigpt train --resume verse-1"),
        ("train runs/verse-1", "it is a run; to resume it: minigpt train --resume verse-1"),
        ("train verse-1@2", "it is a run; to resume it: minigpt train --resume verse-1@2"),
        ("eval --file verse-1", "it is a run; to evaluate it: minigpt eval verse-1"),
        ("runs --in verse-1", "verse-1 is a run; to list all: minigpt runs"),
        ("board --in verse-1", "verse-1 is a run; to see its curves: minigpt board --in runs/verse-1"),
        ("eval verse.txt", "it is a text; to evaluate on it: minigpt eval --file verse.txt"),
        ("train nothing", "'-' (standard input), builtin:NAME or download:NAME"),
        ("train vers.txt", "did you mean verse.txt?"),
        *(
            (f"{command} verse.txt", "it is a text; train on it first: minigpt train verse.txt")
            for command in ("sample", "runs show", "train --resume")
        ),
    ],
)
@pytest.mark.skipif("os.name == 'nt'", reason="needs POSIX")
def test_a_run_is_told_from_a_text(cli: Cli, run: Path, arguments: str, line: str) -> None:
    assert cli(*arguments.split()).error.endswith(line)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("eval --device gpu", "--device is gpu, but should be auto, cpu, cuda, cuda:1 or mps"),
        ("sample --top-p 3", "--top-p is 3.0, but should be at most 1"),
        (
            "sample --top-p 3 --min-p 3",
            "--top-p is 3.0, but should be at most 1; --min-p is 3.0, but should be at most 1",
        ),
        (
            "train -s runtime.device=gpu",
            "configuration: runtime.device is gpu, but should be auto, cpu, cuda, cuda:1 or mps",
        ),
    ],
)
def test_a_wrong_value_names_what_the_user_typed(cli: Cli, run: Path, arguments: str, line: str) -> None:
    assert cli(*arguments.split()).error == line


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("course verse.txt", "verse.txt is a text; to check it: minigpt course check 1 verse.txt"),
        ("data verse.txt", "verse.txt is a text; to describe it: minigpt data info verse.txt"),
        ("runs verse-1@2", "verse-1@2 is a run; to show it: minigpt runs show verse-1@2"),
        ("runs mine", "no command is named 'mine'; there are show, rm, verify, replay; see minigpt runs --help"),
        (
            "runs --json show",
            "--json is an option of the list of runs; options of show come after show; see minigpt runs show --help",
        ),
        ("course list", "no command is named 'list'; there are text, run, check; see minigpt course --help"),
        ("course chek", "no command is named 'chek'; did you mean check?; see minigpt course --help"),
        ("sampel", "no command is named 'sampel'; did you mean sample?; see minigpt --help"),
        ("verse.txt", "verse.txt is a text; to train on it: minigpt train verse.txt"),
        ("verse-1", "verse-1 is a run; to generate text: minigpt sample verse-1"),
        ("sample --preview 3", "No such option: --preview; see minigpt sample --help"),
        (
            "config show --warmup-steps 9",
            (
                "no option is named --warmup-steps; use optim.warmup (a fraction of the run); "
                "see minigpt config show --help"
            ),
        ),
        ("sample --debug", "--debug comes before the command; see minigpt sample --help"),
        ("--debug sampel", "no command is named 'sampel'; did you mean sample?; see minigpt --help"),
    ],
)
def test_a_wrong_command_or_option_gets_advice_that_works(cli: Cli, run: Path, arguments: str, line: str) -> None:
    done = cli(*arguments.split())
    assert (done.code, done.out) == (2, "")
    assert re.sub(r"see .*minigpt", "see minigpt", done.err) == f"minigpt: {line}\n"


def test_an_error_is_one_line_and_a_bug_none() -> None:
    assert error_line(UserError("a\nb"), "train") == r"minigpt: a\nb"
    assert error_line(OSError(28, "No space left on device", "x"), "train") == "minigpt: x: No space left on device"
    assert error_line(BrokenPipeError(), "train") == ""
    assert error_line(MemoryError(), "train") == "minigpt: out of memory; everything saved so far is intact"
    assert error_line(RuntimeError("size mismatch"), "train") is None
    assert error_line(KeyError("a"), "train") is None


def test_a_rank_without_others_means_nothing(cli: Cli, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "5")
    assert cli("train", "--resume", "verse-1").error.startswith("run verse-1 is finished")
