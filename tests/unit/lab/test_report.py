"""The comparison of recorded runs, and the pages and figures of the lab notebook."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from lab_scripts import LAB, script

pytestmark = pytest.mark.nightly

report = script("report")
records = report.records
PAGES = sorted(records.LAB.glob("*.md"))
SECTIONS = {
    f"{page.stem}#{anchor}": section
    for page in PAGES
    if page.stem != "index"
    for anchor, section in records.sections(page).items()
}
"""The sections of the notebook, by page and anchor as in `Experiment.page`."""


def run(question: str, variant: str, seed: int, loss: float, **more: Any) -> dict[str, Any]:
    line = {"question": question, "variant": variant, "seed": seed, "loss": loss, "best": loss, "parameters": 1}
    return line | {"steps": 1, "leak": 0.0} | more


def rows_of(table: str) -> list[dict[str, str]]:
    """Return the rows of a Markdown table by column."""
    head, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    return [dict(zip(head, row, strict=True)) for row in rows]


def test_variants_are_compared_seed_by_seed(tmp_path: Path) -> None:
    """Variant "half" ran only with the better seed, and so has a lower mean loss than the baseline."""
    losses = {"baseline": (1.0, 2.0), "half": (1.1,), "better": (0.9, 1.8)}
    lines = [run("q", name, seed, loss) for name, every in losses.items() for seed, loss in enumerate(every)]
    lines.append(run("other", "better", 0, 9.0, leak=0.5, ms_per_step=7.0))
    path = tmp_path / "runs.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    done = subprocess.run([sys.executable, LAB / "report", "--runs", path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    _, other, _, first, *_ = done.stdout.split("\n\n")
    assert "| better (LEAKS 0.5) | 9.0000 |  | 9.0000 | 1 | 0.00 M | 1 | 7.0 |" in other
    found = [(row["variant"], row["loss"], row["difference"]) for row in rows_of(first)]
    assert found == [
        ("better", "1.3500 ± 0.4500", "-0.1500 ± 0.0500"),
        ("baseline", "1.5000 ± 0.5000", ""),
        ("half", "1.1000", "0.1000"),
    ]


def test_an_unknown_question_is_refused() -> None:
    done = subprocess.run([sys.executable, LAB / "report", "bach"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert "['bach']" in done.stderr.splitlines()[-1]


def questions_of(page: str) -> list[str]:
    """Return the questions that a page names in the command `scripts/lab/report QUESTION...`."""
    commands = re.findall(r"scripts/lab/report ([^-\[\n#][^\n#]*)", page)
    return [name for names in commands for name in names.split()]


def test_the_tables_of_the_notebook_show_the_recorded_runs() -> None:
    """A column that the report lacks, such as `4 layers`, shows losses of the variant of its row."""
    recorded, answered, shown = records.read(), set(), 0
    for name, section in SECTIONS.items():
        questions = questions_of(section)
        answered |= set(questions)
        known = [
            row | {"question": f"`{question}`"}
            for question in questions
            for row in rows_of(report.table(report.variants(recorded[question])))
        ]
        for table in re.findall(r"(?m)^\|(?: question \|)? variant \|.*(?:\n\|.*)*", section):
            for row in rows_of(table):
                claimed = {column: cell for column, cell in row.items() if column in known[0]}
                assert any(claimed.items() <= each.items() for each in known), f"{name}: {row}"
                losses = {each["loss"].split()[0] for each in known if each["variant"] == row["variant"]}
                assert {cell for column, cell in row.items() if re.fullmatch(r"\d layers?", column)} <= losses
                shown += 1
    assert answered == recorded.keys()
    assert shown > 20


def test_the_figures_of_the_notebook_are_drawn_and_shown(tmp_path: Path) -> None:
    report.draw(records.read(), tmp_path)
    figures = {path.name for path in tmp_path.iterdir()} | {"growth.png", "lengths.png"}
    assert figures == {path.name for path in records.LAB.glob("*.png")}
    assert len(figures) <= 16
    pages = [*PAGES, records.LAB.parent / "benchmarks.md"]
    shown = {name for page in pages for name in re.findall(r"!\[.+\]\(.*?([\w-]+\.png)\)", page.read_text("utf-8"))}
    assert shown == figures
