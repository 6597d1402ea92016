"""Run the reader's `mygpt.py` in a process of its own, and compare it with minigpt's computation."""

import json
import subprocess
import sys
from pathlib import Path

from minigpt.errors import UserError, escape

TIME_LIMIT = 120
"""Seconds that a check may take, with the import of torch on a slow machine."""


def check(chapter: int, path: Path, time_limit: float = TIME_LIMIT) -> dict[int, list[str]]:
    """Return what agrees in chapters 1 to `chapter`, by chapter.

    The file is the reader's own: it runs with all of the reader's rights, without a sandbox.

    Raises:
        UserError: The file cannot be read, does not end in time, or computes something else. The message names the
            first difference.
    """
    if not path.is_file():
        raise UserError(f"{escape(path)} is not a file")
    command = [sys.executable, "-m", "minigpt.course.cases", str(chapter), str(path)]
    try:
        result = subprocess.run(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, timeout=time_limit)
        answer = json.loads(result.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        raise UserError(
            f"{escape(path)} ran for more than {time_limit:g} seconds; "
            'put what trains or writes under: if __name__ == "__main__":'
        ) from None
    except (IndexError, ValueError):
        raise UserError(f"{escape(path)} ended its process before the check, with code {result.returncode}") from None
    if answer["problem"]:
        raise UserError(escape(answer["problem"]))
    return {int(number): names for number, names in answer["passed"].items()}
