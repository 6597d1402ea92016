"""The command line as a whole: exit codes, one line per error, streams, and start-up."""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from command_line import SMALL, VERSE, Cli, Done, environment, process
from forgery import scale_weights

from minigpt import __version__
from minigpt.cli.app import app
from minigpt.config.presets import presets
from minigpt.config.resolve import fields
from minigpt.text.download import downloads
from minigpt.text.sources import BUILTINS

pytestmark = pytest.mark.usefixtures("empty_folder")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ("verse.txt", "verse.txt is a text; to train on it: minigpt train verse.txt$"),
        ("verse-1", "verse-1 is a run; to generate text: minigpt sample verse-1$"),
        ("compare", "for example: minigpt compare .*; see .*minigpt compare --help$"),
        ("data info", "for example: minigpt data info my.txt; see .*minigpt data info --help$"),
        ("train --minutes abc", "--minutes is abc, but should be a number; see .*minigpt train --help$"),
        ("train --set", "Option '--set' requires an argument;"),
        ("train --n-layer", "Option '--n-layer' requires an argument; see minigpt train --help$"),
        ("train --nmae x", "--nmae.*--name"),
        ("sample one two", "two"),
        ("sample --unknown ignore", "--unknown.*skip"),
        ("eval --stride 0", "--stride"),
        ("config shwo", "show"),
        ("tran", "train.* --help"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(cli: Cli, run: Path, arguments: str, problem: str) -> None:
    done = cli(*arguments.split())
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert done.err.startswith("minigpt: ")
    assert re.search(problem, done.err.rstrip())


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ("train nosuch.txt", "nosuch.txt"),
        ("train empty.txt", "empty"),
        ("train binary", "binary"),
        ("train latin.txt", "byte 3"),
        ("train builtin:pyhton", "python"),
        ("train -c speedrum", "speedrun"),
        ("train -c latin.txt", "latin.txt"),
        ("train -s model.n_layr=2", r"model\.n_layer"),
        ("train -c tiny -s model.n_layr=2 -s train.steps=x -s model.n_embd=30", "3 problems"),
        ("train -s train.steps=1 -s train.epochs=1", r"train\.steps.*train\.epochs"),
        ("train good.txt -s runtime.device=cuda:77", "cuda:77"),
        ("train good.txt --name ../x", "x"),
        ("train --resume nobody", "nobody"),
        ("train --resume last", "minigpt train"),
        ("train --resume x --name y", "only with settings"),
        ("sample", "minigpt train"),
        ("sample -p a --file good.txt", "--file"),
        ("sample -i -n 2", "--interactive"),
        ("eval", "minigpt train"),
        ("runs", "minigpt train"),
        ("runs rm nobody", "minigpt train"),
        ("board", "minigpt train"),
        ("data info download:nonsense", "shakespeare"),
        ("import ckpt.pt", "minigpt import ckpt.pt --file TEXT"),
        ("import stories --file good.txt", "leave out --file"),
        ("export --to hf -o -", "name one: -o FOLDER"),
        ("train good.txt --n-layer x", "n_layer"),
        ("train good.txt --name a@4", "'a@4' is not a valid run name"),
        ("data info good.txt --encoding utf-9", "utf-9"),
        ("train good.txt -s model.n_layer=1000000000", "n_layer"),
        ("train good.txt -s runtime.threads=99999", "threads"),
    ],
)
def test_bad_input_is_one_line_and_leaves_no_file(cli: Cli, empty_folder: Path, arguments: str, problem: str) -> None:
    Path("good.txt").write_text(VERSE, encoding="utf-8")
    Path("empty.txt").touch()
    Path("binary").write_bytes(bytes(range(256)))
    Path("latin.txt").write_bytes("caf\xe9 au lait".encode("latin-1"))
    Path("folder").mkdir()
    before = set(empty_folder.rglob("*"))
    done = cli(*arguments.split())
    assert re.search(problem, done.err if problem == "3 problems" else done.error)
    assert {path for path in empty_folder.rglob("*") if path.name != "runs"} == before


def test_a_file_named_runs_is_reported_in_one_line(cli: Cli) -> None:
    Path("runs").touch()
    Path("good.txt").write_text(VERSE, encoding="utf-8")
    assert "runs" in cli("train", "good.txt", *SMALL).error
    assert "runs" in cli("runs").error


def test_debug_prints_the_traceback_and_the_same_line(cli: Cli) -> None:
    plain, traced = cli("sample", "nobody"), cli("--debug", "sample", "nobody")
    assert "Traceback" not in plain.err
    assert traced.code == plain.code == 1
    assert traced.err.startswith("Traceback (most recent call last):\n")
    assert traced.err.endswith(f"\n{plain.err}")
    assert cli("--debug", "config", "list") == cli("config", "list")


def test_version_and_help(cli: Cli) -> None:
    assert cli("help") == cli("--help")
    assert cli("help", "data", "info") == cli("data", "info", "--help")
    assert cli("--debug", "help", "train") == cli("train", "--help")
    assert cli("--version") == Done(0, f"minigpt {__version__}\n", "")
    assert cli("-h").out == cli("--help").out
    assert "sample" in cli("-h").out
    assert cli("data", "info", "-h").code == 0


@pytest.mark.parametrize("width", [60, 80, 120])
def test_help_shows_every_word_of_every_description(cli: Cli, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    for name, command in commands().items():
        help_, words = cli(*name.split(), "--help").out, re.sub(r"[^\w]+", " ", help_of(command)).split()
        assert max(map(len, help_.splitlines())) <= width
        shown = re.sub(r"[^\w]+", "", help_)
        assert [word for word in words if word not in shown] == [], name
        assert not re.search(r"<(bool|str|path|list)", help_), "names of Python's types"
        assert "Examples:" in help_ or hasattr(command, "commands") or name.split()[0] in ("data", "config", "course")


def commands() -> dict[str, Any]:
    """Return every command and group by its name, such as "data info"."""
    group = typer.main.get_command(app)
    found = dict(group.commands)  # type: ignore[attr-defined]
    for name, command in list(found.items()):
        found |= {f"{name} {sub}": each for sub, each in getattr(command, "commands", {}).items()}
    return found


def help_of(command: Any) -> str:
    """Return the descriptions of a command and of its options."""
    options = [parameter.help or "" for parameter in command.params if not getattr(parameter, "hidden", False)]
    return " ".join([command.help or "", *options])


def test_settings_are_described_in_a_table(cli: Cli) -> None:
    lines = cli("config", "settings").out.splitlines()[1:]
    assert [line.split()[0] for line in lines] == list(fields())
    assert [row["setting"] for row in cli("config", "settings", "--json").json] == list(fields())


def test_lists_name_every_preset_and_text(cli: Cli) -> None:
    texts = [*(f"builtin:{name}" for name in BUILTINS), *(f"download:{name}" for name in downloads())]
    for command, names in (("config", presets()), ("data", texts)):
        assert [row["name"] for row in cli(command, "list", "--json").json] == list(names)
        assert [line.split()[0] for line in cli(command, "list").out.splitlines()[1:]] == list(names)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("sample ", ["last", "cjk", "verse-1"]),
        ("train --from v", ["verse-1"]),
        ("train -c speed", ["speedrun"]),
        ("train --set optim.mom", ["optim.momentum="]),
        ("runs re", ["replay"]),
    ],
)
def test_shells_complete_runs_presets_and_settings(home: Path, words: str, expected: list[str]) -> None:
    program = "import sys; sys.argv = ['minigpt']; from minigpt.cli.main import main; main()"
    asked = {"_MINIGPT_COMPLETE": "complete_bash", "COMP_WORDS": f"minigpt {words}"}
    asked["COMP_CWORD"] = str(words.count(" ") + 1)
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=home, env=environment() | asked, capture_output=True, text=True, check=True)
    assert done.stdout.split() == expected


def test_these_commands_start_without_torch(home: Path) -> None:
    """Importing torch takes a second, and the other modules a tenth each."""
    commands = [
        *["--help", "--version", "train --help", "sample --help", "runs", "runs --json", "data list"],
        *["config list", "config show -c tiny", "config settings", "data info verse.txt"],
        *["train --minutes -1", "train --resume auto", "sample -l 3"],
    ]
    code = f"""
import sys
import minigpt
from minigpt.cli.main import main
slow = {{"torch", "tensorboard", "tqdm", "asyncio", "multiprocessing", "numpy.random"}}
for command in {commands!r}:
    sys.argv = ["minigpt", *command.split()]
    try:
        main()
    except SystemExit:
        pass
    if slow & {{*sys.modules}}:
        sys.exit(f"minigpt {{command}} imported {{slow & {{*sys.modules}}}}")
minigpt.load("verse-1").generate("May", length=5)
if slow & {{*sys.modules}}:
    sys.exit("minigpt.load imported a slow module")
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=home, env=environment(), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr[-300:]


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("eval", "the loss of the model is nan"),
        ("inspect --json", "activations are not finite"),
        ("sample --json", "logits of the model are not finite"),
        ("inspect", "not finite"),
    ],
)
def test_results_that_are_not_finite_are_one_line(cli: Cli, run: Path, command: str, problem: str) -> None:
    scale_weights(run, 1e20)
    assert problem in cli(*command.split()).error


def test_a_harmless_overflow_prints_no_warning(run: Path) -> None:
    scale_weights(run, 1e10)
    done = process("sample", "-l", "3", "--seed", "1")
    assert (done.returncode, done.stderr) == (0, "")


STOPPED = "minigpt: stopped by Ctrl-C\n"


def test_ctrl_c_is_one_line(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minigpt.storage.runs.all_runs", lambda *_: signal.raise_signal(signal.SIGINT))
    assert cli("runs") == Done(130, "", STOPPED)


def test_ctrl_c_adds_no_line_to_what_the_command_said(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """`minigpt train` says what it saved, and ends with the code of the signal."""
    monkeypatch.setattr("minigpt.storage.runs.all_runs", lambda *_: sys.exit(130))
    assert cli("runs") == Done(130, "", "")


def interrupted_at(module: str, arguments: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    """Run a command that receives SIGINT when it first imports `module`.

    A handler may let an import end before it interrupts the program, which waits for that, however busy the machine.
    """
    program = f"""
import builtins, signal, sys, time
class Finder:
    def find_spec(self, name, path, target=None):
        if name == {module!r}:
            sent.append(name)
            signal.raise_signal(signal.SIGINT)
def importing(*arguments):
    imports.append(arguments)
    try:
        module = original(*arguments)
        while sent and len(imports) == 1: time.sleep(0.01)
        return module
    except KeyboardInterrupt:
        sent.clear()
        raise
    finally: imports.pop()
from minigpt.cli.main import main
sent, imports, original = [], [], builtins.__import__
builtins.__import__ = importing
sys.meta_path.insert(0, Finder())
main()
"""
    command = [sys.executable, "-c", program, *arguments.split()]
    return subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, check=False)


@pytest.mark.skipif(os.name == "nt", reason="needs POSIX")
@pytest.mark.parametrize(
    ("arguments", "module"),
    [("runs", "minigpt.cli.app"), ("sample", "numpy"), ("train verse.txt", "torch")],
)
def test_ctrl_c_in_an_import_has_no_traceback(home: Path, tmp_path: Path, arguments: str, module: str) -> None:
    """Before a command begins, Ctrl-C ends the process: a shell shows the code 130."""
    shutil.copytree(home, tmp_path, dirs_exist_ok=True)
    done = interrupted_at(module, arguments, tmp_path)
    code, stderr = (-signal.SIGINT, "") if module == "minigpt.cli.app" else (130, STOPPED)
    assert (done.returncode, done.stderr) == (code, stderr)


# ---- streams ----


@pytest.mark.skipif(os.name == "nt", reason="needs POSIX")
@pytest.mark.parametrize("closed", ["1>&-", "2>&-", "1>&- 2>&-"])
def test_a_closed_stream_stops_nothing(closed: str) -> None:
    """Python replaces a closed stream with None."""
    command = ["sh", "-c", f'exec "$0" -m minigpt config list {closed}', sys.executable]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert bool(done.stdout) == ("1>&-" not in closed)


@pytest.mark.skipif(os.name == "nt", reason="needs POSIX")
@pytest.mark.parametrize("arguments", [["config", "show"], ["train", "--help"], ["--version"]], ids=" ".join)
def test_a_closed_pipe_is_silent(arguments: list[str]) -> None:
    """As in `minigpt config show | head -1`."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "minigpt", *arguments]
    with os.fdopen(writing, "wb") as pipe:
        done = subprocess.run(command, env=environment(), stdout=pipe, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux")
def test_a_full_disk_behind_stdout_is_one_line() -> None:
    with open("/dev/full", "wb") as full:
        command = [sys.executable, "-m", "minigpt", "config", "show"]
        done = subprocess.run(command, env=environment(), stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert re.fullmatch(r"minigpt: .*No space left.*\n", done.stderr)


def test_output_is_utf_8_in_every_locale() -> None:
    """A Windows console may have a code page that lacks most of Unicode."""
    ascii_only = {**environment(), "PYTHONIOENCODING": "ascii:strict", "PYTHONUTF8": "0", "LC_ALL": "C"}
    command = [sys.executable, "-m", "minigpt", "data", "info", "-"]
    done = subprocess.run(command, env=ascii_only, input="春眠\n".encode(), capture_output=True, check=False)
    assert done.returncode == 0
    assert "'春'" in done.stdout.decode("utf-8")


def test_the_module_runs_as_a_program() -> None:
    assert process("--version").stdout == f"minigpt {__version__}\n"
