"""The README's commands and its Python example run as they stand, on small texts and for a few steps."""

import gzip
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from minigpt.cli import app
from minigpt.errors import UserError

README = Path(__file__).parent.parent / "README.md"
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
    for line in lines:
        before, _, command = line.rpartition("minigpt ")
        assert before in ("", "cat my.txt | "), f"not a minigpt command: {line}"
        if command == "train --resume last":
            continue  # the run is finished by then; the next line of the README goes on with it
        run(command.replace("train.steps=2000", "train.steps=4"))


def test_the_python_example_runs(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = blocks("python")
    assert len(example.strip().splitlines()) <= 10
    exec(compile(example, "README.md", "exec"), {})  # noqa: S102
    assert len(capsys.readouterr().out) > 100


def test_the_readme_names_only_files_that_exist() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", README.read_text(encoding="utf-8"))
    missing = [link for link in links if not (README.parent / link).exists()]
    assert links
    assert not missing
