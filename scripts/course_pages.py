"""The code on the pages of the course, as the tests and scripts/record_course run it."""

import re
from pathlib import Path

from minigpt.course.chapters import CHAPTERS, Chapter

PAGES = Path(__file__).resolve().parents[1] / "docs/course"
BLOCK = re.compile(r'^( *)```python(?: title="(.*?)")?\n(.*?)^\1```$', re.MULTILINE | re.DOTALL)


def page(chapter: Chapter) -> str:
    return (PAGES / chapter.page).read_text(encoding="utf-8")


def blocks(text: str, title: str) -> list[str]:
    """Return the code blocks of a page that have this title, without their indentation."""
    found = (block for block in BLOCK.findall(text) if block[1] == title)
    return [re.sub(f"^{space}", "", code, flags=re.MULTILINE) for space, _, code in found]


def assembled() -> str:
    """Return mygpt.py as a reader has it after the last chapter."""
    return "\n\n".join(block for chapter in CHAPTERS for block in blocks(page(chapter), "mygpt.py"))
