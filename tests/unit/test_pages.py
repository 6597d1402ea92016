"""The commands, settings and Python examples of README, first steps and guides run as written.

Training is short, on small texts.
"""

import gzip
import re
import shlex
import shutil
import webbrowser
from pathlib import Path
from typing import Any

import pytest
import typer
from command_line import Cli, called
from typer.exceptions import TyperException
from typer.testing import CliRunner

from minigpt.cli.app import app
from minigpt.config.presets import read_preset
from minigpt.config.resolve import parse_overrides, resolve
from minigpt.errors import UserError
from minigpt.storage.runs import find_run, newest_step

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "docs/index.md",
    ROOT / "docs/course/worksheet.md",
    *(page for page in sorted(ROOT.glob("docs/start/*.md")) if page.stem != "first-run"),
    *(page for page in sorted(ROOT.glob("docs/guides/*.md")) if page.stem != "class"),
]
LESSONS = [ROOT / "docs/start/first-run.md", ROOT / "docs/guides/class.md"]
"""The pages that show what each command prints."""
LANGUAGES = {"sh", "python", "yaml", "bash", "powershell", "text"}
"""The languages of code blocks. Those in `bash` or `powershell` need a network or another system, and do not run.
Those in `text` are outputs."""
SHORT = shlex.split(
    "-s model.n_layer=2 -s model.n_embd=32 -s model.context=32"
    " -s train.batch_size=4 -s sample.length=40 -s sample.preview=0"
    " -s runtime.dtype=float32 -s runtime.device=cpu -s runtime.compile=false -s runtime.threads=1"
)
SMALL_LESSON = (
    *("model.n_embd=16", "train.batch_size=2", "train.log_every=2", "train.eval_every=2", "train.save_every=2"),
    *("runtime.dtype=float32", "runtime.device=cpu", "runtime.compile=false", "runtime.threads=1"),
)
TEXT = "All work and no play makes Jack a dull boy, said the class of def and print.\n" * 40
NOT_RUN = ("download:", "board")
"""Parts of commands that need a network or wait for Ctrl-C. Other tests run them."""


def blocks(page: Path, language: str) -> list[tuple[str, str]]:
    """The title and the content of each block."""
    text = page.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}(?: title=\"(.*?)\")?\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)


def commands(page: Path) -> list[str]:
    lines = [line.partition(" #")[0].strip() for _, block in blocks(page, "sh") for line in block.splitlines()]
    return [line for line in lines if line]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with every file that the pages name, and the runs `my-1` and `my-2`."""
    folder = tmp_path_factory.mktemp("trained")
    for name in ("my.txt", "other.txt", "notes/a.txt", "poems/b.txt", "start.txt"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(TEXT, encoding="utf-8")
    (folder / "other.txt").write_text(TEXT[::-1], encoding="utf-8")
    (folder / "more.gz").write_bytes(gzip.compress(TEXT.encode()))
    (folder / "my.yaml").write_text("data:\n  source: my.txt\n", encoding="utf-8")
    called(folder, "train", "my.txt", "--name", "my-1", "-s", "train.steps=2", *SHORT)
    shutil.copytree(folder / "runs/my-1", folder / "runs/my-2")
    return folder


@pytest.fixture
def workplace(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of `trained`, as the current folder."""
    folder = shutil.copytree(trained, tmp_path / "workplace")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(webbrowser, "open", lambda url: True)
    monkeypatch.setattr("minigpt.training.dial.steps_within", lambda *given: 2)
    return folder


def run(command: str) -> None:
    """Run a line after `minigpt`. If it trains or measures, make it short."""
    line, steps = command.partition(" > ")[0].replace("@400", "@last"), 2
    resumed = re.search(r"--resume (?!auto)([\w-]+)", line)
    if resumed:
        steps += newest_step(find_run(resumed[1])) or 0
    line = re.sub(r"--(steps |max_iters=)\d+", f"--steps {steps}", line)
    words = shlex.split(re.sub(r"--epochs \d+", "--epochs 0.01", line))
    if words[0] == "train" and not {"--steps", "--epochs", "--minutes"} & {*words}:
        words += ["-s", f"train.steps={steps}"]
    if words[0] == "train" and not resumed:
        words += (
            [] if any("lstm" in word for word in words) else ["-s", "model.n_head=2"]
        )  # a recurrent network has no heads
        words += [*SHORT, "-s", "data.source=my.txt"] if words[1:2] in (["--config"], ["-c"]) else SHORT
    result = CliRunner().invoke(app, words, input=TEXT)
    if isinstance(result.exception, UserError):
        pytest.fail(f"minigpt {command}: {result.exception}")
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, f"minigpt {command} ended with {result.exit_code}: {result.output}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_blocks_of_a_page_run(page: Path, workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fences = re.findall(r"^ *```(\w*)", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert {*fences[::2]} <= LANGUAGES
    assert not re.search(r"^ +```(sh|python|yaml)", page.read_text(encoding="utf-8"), flags=re.MULTILINE)  # never found
    for title, block in blocks(page, "yaml"):
        Path(title).write_text(block, encoding="utf-8")
        resolve(*read_preset(title))
    for line in commands(page):
        before, _, command = line.rpartition("minigpt ")
        assert before in ("", "cat my.txt | "), f"not a minigpt command: {line}"
        resolve(parse_overrides(parse(command).get("set_") or []))
        if not any(part in command for part in NOT_RUN):
            run(command)
    names: dict[str, Any] = {}
    capsys.readouterr()
    for _, example in blocks(page, "python"):
        exec(compile(example, page.name, "exec"), names)  # noqa: S102
        assert capsys.readouterr().out


@pytest.mark.parametrize("page", LESSONS, ids=lambda page: page.stem)
def test_a_lesson_prints_what_its_page_shows(page: Path, workplace: Path, cli: Cli) -> None:
    """A small model prints other figures and samples than the page. `...` stands for any lines.

    Nobody presses Ctrl-C here, so what follows `^C` is not compared. Once the page has imported the trained model,
    commands use it instead of the small one, as a class without time does.
    """

    def shape(line: str) -> str:
        line = line.replace("torch.compile", "not compiled")  # which takes too long here
        return " ".join(re.sub(r"\d[\d,.]*(e[-+]\d+)?( s| min| threads?( on \d+ cores)?)?", "#", line).split())

    small = [*SMALL_LESSON, "train.steps=6"]
    output, is_compared, compared, run_name = iter(""), False, 0, "anna"
    for language, block in re.findall(r"^```(\w+)\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.M):
        for line in block.splitlines():
            if language == "text":
                is_compared = is_compared and line != "^C"
                wanted, is_checked = shape(line), is_compared and line != "..."
                assert not is_checked or any(printed.startswith(wanted) for printed in output), line
                compared += is_checked
            elif language == "sh" and not any(part in line for part in NOT_RUN):
                program, *words = [run_name if word == "anna" else word for word in shlex.split(line, comments=True)]
                assert program == "minigpt"
                if "--resume" in words:
                    words += ["-s", "train.steps=8"]
                elif words[0] == "train":
                    is_timed = "--minutes" in words
                    words += [part for setting in small[: -1 if is_timed else None] for part in ("-s", setting)]
                done = cli(*words)
                assert done.code == 0, (line, done.err)
                run_name = "stories-1" if words[0] == "import" else run_name
                output, is_compared = map(shape, (done.err + done.out).splitlines()), words[0] != "sample"
    assert compared >= 12


def test_the_python_examples_import_only_from_the_package() -> None:
    examples = [example for page in PAGES for _, example in blocks(page, "python")]
    imported = set(re.findall(r"^(?:from|import) (minigpt\S*)", "\n".join(examples), re.MULTILINE))
    assert imported == {"minigpt"}


def test_all_kinds_of_blocks_are_found() -> None:
    """Otherwise the test above could pass without testing anything."""
    found = {language: sum(len(blocks(page, language)) for page in PAGES) for language in LANGUAGES}
    assert found["sh"] > 30
    assert found["python"] > 4
    assert found["yaml"] > 0


def parse(command: str) -> dict[str, Any]:
    """Parse a line after `minigpt` without running it; return the options and arguments."""
    words, found = shlex.split(command.partition(" > ")[0]), typer.main.get_command(app)
    name = ""
    while words and hasattr(found, "commands"):
        name = words.pop(0)
        assert name in found.commands, f"minigpt {command}: there is no {name}"
        found = found.commands[name]
    try:
        return found.make_context(name, words).params
    except TyperException as error:
        pytest.fail(f"minigpt {command}: {error.format_message()}")
