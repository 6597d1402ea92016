"""The README is true. tests/unit/test_pages.py runs its commands."""

import re
import statistics
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from minigpt.cli.app import app

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BENCHMARKS = (ROOT / "docs/project/benchmarks.md").read_text(encoding="utf-8")
CODE = re.compile(r"^```.*?^```|^    .*?$", flags=re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)#]+)(?:#([^)]+))?\)")
FIGURE = re.compile(r"\b\d[\d,.]*")
"""A number, but not that of "float32"."""


def prose() -> str:
    """The README without its code blocks."""
    return CODE.sub("", README)


def sections(page: str) -> dict[str, str]:
    """The parts of a page by the anchors of their headings."""
    parts = re.split(r"^#+ (.*)\n", page, flags=re.MULTILINE)[1:]
    return {anchor(title): body for title, body in zip(parts[::2], parts[1::2], strict=True)}


def anchor(title: str) -> str:
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


def rows() -> list[list[str]]:
    """The cells of the comparison table."""
    table = sections(README)["how-it-compares"]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line[:1] == "|"][2:]


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


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_the_figures_of_the_table_are_in_the_benchmarks(row: list[str]) -> None:
    """The section that a row links to has each cell's figures in one line, and names the machine."""
    _, ours, others, measured = row
    link = LINK.search(measured)
    assert link
    assert link[1] == "docs/project/benchmarks.md"
    lines = sections(BENCHMARKS)[link[2]].splitlines()
    for cell in (ours, others):
        figures = {figure.rstrip(".,") for figure in FIGURE.findall(cell)}
        assert figures
        assert any(figures <= {found.rstrip(".,") for found in FIGURE.findall(line)} for line in lines), cell
    machine = measured.partition("]")[0].strip("[")
    assert any(machine in line for line in lines)


def test_the_losses_of_the_benchmarks_are_those_of_the_recorded_seeds() -> None:
    recorded = yaml.safe_load((ROOT / "scripts/lab/expected.yaml").read_text(encoding="utf-8"))
    table = dict(re.findall(r"^\| `([\w-]+)` \| ([\d.]+) ±", sections(BENCHMARKS)["loss"], flags=re.MULTILINE))
    assert len(table) >= 5
    for preset, loss in table.items():
        assert f"{statistics.mean(recorded[preset]['losses']):.4f}" == loss, preset
