"""Train the reader's GPT as chapters 9 to 11 print it, with other seeds, and keep what the programs print.

Each seed has a folder with the reader's files: mygpt.py, stories.txt, try9.py, try10.py and try11.py.
"""

import datetime
import json
import platform
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
"""The result of a seed: its losses, P(A), the step at which it passed one half, the most needed head, and when."""
LAST = re.compile(r"seed (\d+): half at step (\d+|none), head (\d·\d), P\(A\) (\d+)%, without it (\d+)%")


def record(seed: int, folder: Path) -> None:
    """Train with AdamW and with Muon, and open the film, unless `folder` has the results."""
    folder.mkdir(exist_ok=True)
    (folder / "mygpt.py").write_text(assembled(), encoding="utf-8")
    (folder / "stories.txt").write_text("".join(stories(*STORIES)), encoding="utf-8")
    path = folder / "row.json"
    row: Row = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"seed": seed}
    if "loss" not in row:
        start = time.time()
        row["loss"] = float(re.findall(r"^loss ([\d.]+)$", _run(10, seed, folder), re.MULTILINE)[0])
        row["seconds"] = round(time.time() - start)
        row["recorded"], row["machine"] = datetime.datetime.now().date().isoformat(), platform.processor()
        (found,) = LAST.findall(_run(11, seed, folder))
        row |= {"half": int(found[1]) if found[1] != "none" else None, "head": found[2]}
        row |= {"A": int(found[3]) / 100, "without": int(found[4]) / 100}
        path.write_text(json.dumps(row), encoding="utf-8")
    if "adamw" not in row:
        numbers = re.findall(r"^([\d.]+) ([\d.e-]+)$", _run(9, seed, folder), re.MULTILINE)
        row["adamw"], row["A adamw"] = map(float, numbers[0])
        path.write_text(json.dumps(row), encoding="utf-8")


def rows() -> list[Row]:
    """Return the results in the current folder, in the order of the seeds."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in Path().glob("film-*/row.json")]
    return sorted(found, key=lambda row: row["seed"])


def _run(number: int, seed: int, folder: Path) -> str:
    """Run the program of a chapter with another seed, and return what it prints."""
    (code,) = blocks(page(CHAPTERS[number - 1]), f"try{number}.py")
    code = code.replace("seed = 1\n", f"seed = {seed}\n").replace("manual_seed(1)", f"manual_seed({seed})")
    path = folder / f"try{number}.py"
    path.write_text(code, encoding="utf-8")
    return subprocess.run([sys.executable, path.name], cwd=folder, check=True, capture_output=True, text=True).stdout
