"""Numbers that stand on several pages are those that were recorded."""

import re

import pytest
from marks import ROOT, Numbers, fill, marked_files

FILES = [path.relative_to(ROOT).as_posix() for path in marked_files()]


@pytest.fixture(scope="module")
def numbers() -> Numbers:
    return Numbers()


@pytest.mark.parametrize("name", FILES)
def test_marked_numbers_are_those_recorded(name: str, numbers: Numbers) -> None:
    page = (ROOT / name).read_text(encoding="utf-8")
    assert fill(page, numbers.text) == page
    assert not list(numbers.problems(page))


@pytest.mark.parametrize("name", ["README.md", "configs/speedrun.yaml", "docs/project/benchmarks.md"])
def test_a_changed_number_is_found(name: str, numbers: Numbers) -> None:
    page = (ROOT / name).read_text(encoding="utf-8")
    changed = re.sub(r"[\d.,]+<!--n:", "7<!--n:", page, count=1)
    assert changed != page == fill(changed, numbers.text)


def test_a_line_may_end_within_a_mark(numbers: Numbers) -> None:
    page = "11.8 to\n  11.9<!--n:speedrun s\n  range-->"
    assert fill(page, numbers.text) == page
    assert fill(page.replace("11.9", "13"), numbers.text) == "11.8 to 11.9<!--n:speedrun s range-->"


def test_a_block_of_output_must_have_the_numbers_of_its_mark(numbers: Numbers) -> None:
    page = "```text\nloss 1.8983, 12 s\n```\n<!--n:nanogpt-laptop loss, speedrun s-->\n"
    assert not list(numbers.problems(page))
    assert list(numbers.problems(page.replace("1.8983", "1.8984"))) == ["a block lacks 1.8983 (nanogpt-laptop loss)"]


@pytest.mark.parametrize(
    ("name", "text"),
    [("shakespeare-medium s range", "391 to 428"), ("nanogpt ms", "2,356"), ("shakespeare-large minutes least", "41")],
)
def test_a_name_gives_its_number(name: str, text: str, numbers: Numbers) -> None:
    assert numbers.text(name) == text
