"""The README is true. tests/unit/test_pages.py runs its commands."""

import re
from pathlib import Path

from typer.testing import CliRunner

from minigpt.cli.app import app

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
CODE = re.compile(r"^```.*?^```|^    .*?$", flags=re.DOTALL | re.MULTILINE)


def prose() -> str:
    """The README without its code blocks."""
    return CODE.sub("", README)


def test_every_command_in_the_text_exists() -> None:
    named = re.findall(r"`minigpt ([^`]+)`", prose())
    assert len(named) > 3
    for command in named:
        assert CliRunner().invoke(app, [*command.split(), "--help"]).exit_code == 0, command


def test_the_lines_that_are_not_run_name_what_exists() -> None:
    """The tests skip commands that install the package or set up a checkout: these take minutes."""
    install = "".join(re.findall(r"^```bash\n(.*?)^```", README, flags=re.DOTALL | re.MULTILINE))
    assert re.findall(r"torch==\S+", install) == re.findall(
        r"^torch==[^;\s]+", (ROOT / "constraints.txt").read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    scripts = re.findall(r"^    (\S+)", README, flags=re.MULTILINE)
    assert scripts == ["scripts/quickstart", "scripts/test"]
    assert all((ROOT / script).is_file() for script in scripts)
