"""The generated pages in docs/ are current."""

import json
import re
import subprocess
import sys
from pathlib import Path

import reference
import typer

from minigpt.cli.main import app
from minigpt.config.presets import presets
from minigpt.config.resolve import fields

ROOT = Path(__file__).resolve().parents[2]


def test_generated_pages_are_current() -> None:
    command = [sys.executable, str(ROOT / "scripts/make_docs"), "--check"]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr


def test_the_reference_has_one_table_row_per_setting() -> None:
    rows = [line for line in reference.settings().splitlines() if re.match(r"\| `\w+\.", line)]
    assert [row.split("`")[1] for row in rows] == list(fields())
    assert all(row.replace("\\|", "").count("|") == 5 for row in rows)


def test_the_reference_has_a_section_per_command() -> None:
    headings = re.findall(r"^##+ `minigpt (.+)`$", reference.commands(), flags=re.MULTILINE)
    groups = typer.main.get_command(app).commands
    names = [[name, *(f"{name} {below}" for below in getattr(group, "commands", ()))] for name, group in groups.items()]
    assert headings == [name for group in names for name in group]


def test_each_preset_names_the_schema_for_editors() -> None:
    for name in presets():
        first = (ROOT / f"configs/{name}.yaml").read_text(encoding="utf-8").splitlines()[0]
        assert first == "# yaml-language-server: $schema=../docs/config.schema.json"
    assert (ROOT / "docs/config.schema.json").is_file()


def test_the_course_on_attention_has_its_table_and_figures() -> None:
    course = (ROOT / "docs/course/attention.md").read_text(encoding="utf-8")
    for row in json.loads((ROOT / "docs/course/inside/claims.json").read_text(encoding="utf-8"))["claims"]:
        assert f"* | {row['verdict']} | {row['measured']} |" in course
    pictures = re.findall(r"!\[[^]]*\]\(([^)]+)\)", course)
    assert len(pictures) >= 3
    assert all((ROOT / "docs/course" / picture).is_file() for picture in pictures)
