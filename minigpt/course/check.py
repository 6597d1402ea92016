"""Run the reader's `mygpt.py` in a process of its own, and compare it with minigpt's computation."""

import json
import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile

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
    with (
        TemporaryFile() as answer,
        subprocess.Popen(
            [*python_command("minigpt.course.worker"), str(chapter), str(path)],
            stdin=subprocess.PIPE,  # closes when this process ends in any way
            stdout=answer,
            start_new_session=True,  # Ctrl-C is for this process, and a process group can be ended as a whole
            creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
        ) as process,
    ):
        try:
            process.wait(time_limit)
        except subprocess.TimeoutExpired:
            raise UserError(
                f"{escape(path)} ran for more than {time_limit:g} seconds; "
                'put what trains or writes under: if __name__ == "__main__":'
            ) from None
        finally:
            with suppress(OSError):  # all of them have ended
                os.killpg(process.pid, signal.SIGKILL) if hasattr(os, "killpg") else process.kill()
        answer.seek(0)
        text = answer.read()
    if not text:
        end = f"with code {process.returncode}"
        if process.returncode < 0:
            end = f"by signal {signal.Signals(-process.returncode).name}"
        raise UserError(f"{escape(path)} ended its process before the check, {end}")
    result = json.loads(text)
    if result["problem"]:
        raise UserError(escape(result["problem"]))
    return {int(number): names for number, names in result["passed"].items()}
