"""The generated pages in docs/ are current."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import reference
import typer

from minigpt.cli.app import app
from minigpt.config.resolve import fields

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_generated_pages_are_current() -> None:
    command = [sys.executable, str(ROOT / "scripts/make_docs"), "--check"]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr


def test_every_relative_link_works_in_the_repository() -> None:
    pages = [
        page for pattern in ("*.md", "data/*.md", "docs/**/*.md", ".github/**/*.md") for page in ROOT.glob(pattern)
    ]
    assert len(pages) > 40
    for page in pages:
        text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
        for link in re.findall(r"\]\((?!\w+:|#)([^)#\s]+)", text):
            assert (page.parent / link).exists(), f"{page.relative_to(ROOT)}: {link}"


def test_the_reference_has_one_table_row_per_setting() -> None:
    rows = [line for line in reference.settings().splitlines() if re.match(r"\| `\w+\.", line)]
    assert [row.split("`")[1] for row in rows] == list(fields())
    assert all(row.replace("\\|", "").count("|") == 5 for row in rows)


def test_the_reference_has_a_section_per_command() -> None:
    headings = re.findall(r"^##+ `minigpt (.+)`$", reference.commands(), flags=re.MULTILINE)
    groups = typer.main.get_command(app).commands
    names = [[name, *(f"{name} {below}" for below in getattr(group, "commands", ()))] for name, group in groups.items()]
    assert headings == [name for group in names for name in group]


def test_the_numbers_to_redo_by_hand_are_right() -> None:
    """Run the code on the page, and redo its arithmetic with the rounded numbers that a reader has."""
    page = (ROOT / "docs/course/by-hand.md").read_text(encoding="utf-8")
    steps = re.findall(r"([e\d.^·+/ ]*[·^/][e\d.^·+/ ]*)=\s+([\d.]*\d)", page)
    assert len(steps) == 4
    code = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0]
    code += "".join(f"print({left.replace('·', '*').replace('e^', 'np.e ** ').strip()})\n" for left, _ in steps)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    rows = re.findall(r"^\| (?:The|quick|brown|fox) \|(.*)\|$", page.partition("## 7.")[2], re.MULTILINE)
    shown = [float(cell) for row in rows for cell in row.split("|")] + [float(right) for _, right in steps]
    found = [float(number) for number in re.findall(r"-?[\d.]+", done.stdout)]
    assert len(found) == 24
    assert found == pytest.approx(shown, abs=0.001)
