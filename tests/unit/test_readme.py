"""The README is true. tests/unit/test_pages.py runs its commands."""

import re
from pathlib import Path

from typer.testing import CliRunner

from minigpt.cli.app import app

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
INSTALL = (ROOT / "docs/start/install.md").read_text(encoding="utf-8")


def test_every_command_in_the_text_exists() -> None:
    named = re.findall(r"`minigpt ([^`]+)`", README)
    assert len(named) > 3
    for command in named:
        assert CliRunner().invoke(app, [*command.split(), "--help"]).exit_code == 0, command


def test_the_lines_that_are_not_run_name_what_exists() -> None:
    """The tests skip commands that install the package or set up a checkout: these take minutes."""
    constraints = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    wanted = re.findall(r"^torch==[^;\s]+", constraints, flags=re.MULTILINE)
    assert {*re.findall(r"torch==\S+", INSTALL)} == {*wanted}
    scripts = re.findall(r"^(scripts/\S+)", README, flags=re.MULTILINE)
    assert scripts == ["scripts/quickstart"]
    assert all((ROOT / script).is_file() for script in scripts)
