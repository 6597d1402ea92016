"""The README's commands and its Python example run as they stand, on small texts and for a few steps.

What else it names, commands, options and files, is there.
"""

import gzip
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.exceptions import TyperException
from typer.testing import CliRunner

from minigpt.cli.main import app
from minigpt.config.resolve import parse_overrides, resolve
from minigpt.errors import UserError

README = Path(__file__).resolve().parents[2] / "README.md"
SHORT = shlex.split("-s train.steps=2 -s model.n_layer=1 -s model.n_embd=32 -s model.n_head=2 -s model.context=16")
QUICK = shlex.split(
    "-s train.batch_size=4 -s sample.preview=0 -s train.eval_every=2 -s runtime.dtype=float32 -s runtime.device=cpu"
)
TEXT = "All work and no play makes Jack a dull boy, said the class of def and print.\n" * 40


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)


def commands() -> list[str]:
    lines = [line.partition("  #")[0].strip() for block in blocks("sh") for line in block.splitlines()]
    return [line for line in lines if line]


def in_passing() -> list[str]:
    """The lines of indented blocks, and code within sentences."""
    prose = re.sub(r"^```.*?^```", "", README.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    lines = re.findall(r"^    (.*?)(?:  .*)?$", prose, flags=re.MULTILINE)
    return [*lines, *re.findall(r"`([^`]+)`", re.sub(r"^    .*", "", prose, flags=re.MULTILINE))]


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with every file that the README names, and the run `quickstart-1`."""
    monkeypatch.chdir(tmp_path)
    for name in ("my.txt", "other.txt", "notes/a.txt", "poems/b.txt", "start.txt"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(TEXT, encoding="utf-8")
    Path("more.gz").write_bytes(gzip.compress(TEXT.encode()))
    Path("my.yaml").write_text("data:\n  source: my.txt\n", encoding="utf-8")
    run("train my.txt --name quickstart-1")
    return tmp_path


def run(command: str) -> str:
    """Run a line after `minigpt`, made short where it trains; return what it printed."""
    words = shlex.split(command)
    if words[0] == "train" and "--resume" not in words:
        words += [*SHORT, *QUICK]
    if words[0] == "train" and ("-c" in words or "--config" in words):
        words += ["-s", "data.source=my.txt"]
    result = CliRunner().invoke(app, words, input=TEXT)
    if isinstance(result.exception, UserError):
        pytest.fail(f"minigpt {command}: {result.exception}")
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, f"minigpt {command} ended with {result.exit_code}: {result.output}"
    return result.output


def test_the_commands_of_the_readme_run(workplace: Path) -> None:
    lines = [line for line in commands() if "download:" not in line]  # needs a network; tested in test_download.py
    assert len(lines) > 15
    fences = re.findall(r"^```(.*)", README.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert {*fences[::2]} == {"sh", "python"}
    for line in lines:
        before, _, command = line.rpartition("minigpt ")
        assert before in ("", "cat my.txt | "), f"not a minigpt command: {line}"
        if command == "train --resume last":
            continue  # the run is finished by then; the next line of the README goes on with it
        run(command.replace("train.steps=2000", "train.steps=4"))


def leaves(command: Any) -> Iterator[Any]:
    """The commands that do something, of a group and the groups in it."""
    for below in command.commands.values():
        yield from leaves(below) if hasattr(below, "commands") else [below]


def parse(command: str) -> dict[str, Any]:
    """Parse a line after `minigpt` without running it; return the options and arguments."""
    words, found = shlex.split(command.partition(" > ")[0]), typer.main.get_command(app)
    while hasattr(found, "commands"):
        name = words.pop(0)
        assert name in found.commands, f"minigpt {command}: there is no {name}"
        found = found.commands[name]
    try:
        return found.make_context(name, words).params
    except TyperException as error:
        pytest.fail(f"minigpt {command}: {error.format_message()}")


def test_every_command_that_the_readme_names_is_one() -> None:
    named = [code.removeprefix("minigpt ") for code in in_passing() if code.startswith("minigpt ")]
    assert len(named) > 6
    for command in [*(line.rpartition("minigpt ")[2] for line in commands()), *named]:
        resolve(parse_overrides(parse(command).get("set_") or []))


def test_every_option_that_the_readme_names_is_one() -> None:
    options = {option for leaf in leaves(typer.main.get_command(app)) for param in leaf.params for option in param.opts}
    named = [code.split(maxsplit=1) for code in in_passing() if code.startswith("-")]
    assert len(named) > 10
    for option, *value in named:
        assert option in options
        if option == "--set":
            resolve(parse_overrides(value))


def test_the_python_example_runs(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = blocks("python")
    assert len(example.strip().splitlines()) <= 10
    exec(compile(example, "README.md", "exec"), {})  # noqa: S102
    assert len(capsys.readouterr().out) > 100


def test_the_readme_names_only_files_that_exist() -> None:
    """Those it links to, and wherever it names one of a folder of the repository."""
    text = README.read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#:]+)\)", text)
    paths = re.findall(r"(?<![\w./-])(?:configs|data|docs|minigpt|scripts|tests)/(?:[\w./-]*\w)?", text)
    missing = [name for name in [*links, *paths] if not (README.parent / name).exists()]
    assert links
    assert len(paths) > 20
    assert not missing
