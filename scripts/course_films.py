"""Run the programs of chapters 10 and 11 with other seeds, and keep the numbers that they print.

Each seed has a folder with the reader's files: mygpt.py, stories.txt, try10.py, film.pt and try11.py.
"""

import datetime
import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from course_pages import assembled, blocks, page

from minigpt.course.chapters import CHAPTERS
from minigpt.text.sources import STORIES
from minigpt.text.stories import stories

Row = dict[str, Any]
"""A seed: its loss, P(A), when it passed one half, the head that finds Anna, the most needed one, P(A) without each."""
LAST = re.compile(
    r"head (\d·\d) is needed most: .*, (\d+)% without it\n.*\n"
    r"seed \d+: half at step (\d+|none), (\d+)% at the end, head (\d·\d), (\d+)% without it"
)


def record(seed: int, folder: Path) -> None:
    """Run the programs of chapters 10 and 11, unless `folder` has their results."""
    folder.mkdir(exist_ok=True)
    (folder / "mygpt.py").write_text(assembled(), encoding="utf-8")
    (folder / "stories.txt").write_text("".join(stories(*STORIES)), encoding="utf-8")
    path = folder / "row.json"
    row: Row = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"seed": seed}
    if "loss" not in row:
        start = time.time()
        row["loss"] = float(re.findall(r"^loss ([\d.]+)$", _run(10, seed, folder), re.MULTILINE)[0])
        row["seconds"] = round(time.time() - start)
        row["recorded"] = datetime.datetime.now().date().isoformat()
        path.write_text(json.dumps(row), encoding="utf-8")
    if "half" not in row:
        ((needed, without, half, A, head, without_head),) = LAST.findall(_run(11, seed, folder))
        row |= {"half": int(half) if half != "none" else None, "A": int(A) / 100}
        row |= {"head": head, "without head": int(without_head) / 100, "needed": needed, "without": int(without) / 100}
        path.write_text(json.dumps(row), encoding="utf-8")


def rows() -> list[Row]:
    """Return the results in the current folder, in the order of the seeds."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in Path().glob("film-*/row.json")]
    return sorted(found, key=lambda row: row["seed"])


def _run(number: int, seed: int, folder: Path) -> str:
    """Run the program of a chapter with another seed, and return what it prints."""
    (code,) = blocks(page(CHAPTERS[number - 1]), f"try{number}.py")
    code = code.replace("seed = 1\n", f"seed = {seed}\n")
    path = folder / f"try{number}.py"
    path.write_text(code, encoding="utf-8")
    return subprocess.run([sys.executable, path.name], cwd=folder, check=True, capture_output=True, text=True).stdout
