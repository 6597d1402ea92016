"""Run the reader's `mygpt.py` in a process of its own, and compare it with minigpt's computation."""

import json
import subprocess
from pathlib import Path

from minigpt.errors import UserError, escape
from minigpt.world import python_command

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
    if path.suffix != ".py":
        raise UserError(f"{escape(path)} is not named as Python code: rename it to {escape(path.stem)}.py")
    command = [*python_command("minigpt.course.worker"), str(chapter), str(path)]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, timeout=time_limit)
    except subprocess.TimeoutExpired:
        raise UserError(
            f"{escape(path)} ran for more than {time_limit:g} seconds; "
            'put what trains or writes under: if __name__ == "__main__":'
        ) from None
    if not done.stdout:
        raise UserError(f"{escape(path)} ended its process before the check, with code {done.returncode}")
    result = json.loads(done.stdout)
    if result["problem"]:
        raise UserError(escape(result["problem"]))
    return {int(number): names for number, names in result["passed"].items()}
