"""Run the reader's `mygpt.py` in a process of its own, and compare it with minigpt's computation."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from pydantic import BaseModel

from minigpt.errors import UserError, escape

TIME_LIMIT = 120
"""Seconds that a check may take, including the import of torch on a slow machine."""
WORKER = "import sys; sys.path = [p for p in sys.path if p]; from minigpt.course.worker import main; main()"
"""Unlike `python -m`, this imports no library from the current folder. PYTHONSAFEPATH would need Python 3.11."""


class Answer(BaseModel):
    """What a check has found."""

    passed: dict[int, list[str]] = {}
    """What agrees, by chapter."""
    problem: str = ""
    """The first difference, or the error that ended the check."""
    notices: list[str] = []


def check(chapter: int, path: Path) -> Answer:
    """Compare the results of the reader's code for chapters 1 to `chapter` with the right ones.

    The file is the reader's own: it runs with all of the reader's rights, without a sandbox.

    Raises:
        UserError: The file is not named NAME.py, does not end in time, or ends its process.
    """
    if path.suffix != ".py":
        raise UserError(f"{escape(path)} is not named as Python code: rename it to {escape(path.stem)}.py")
    with TemporaryDirectory() as folder:
        answer = Path(folder, "answer.json")  # not a pipe, which the file could close or write to
        with subprocess.Popen(
            [sys.executable, "-c", WORKER, str(chapter), str(path), str(answer)],
            stdin=subprocess.DEVNULL,
            stdout=2,  # what the file prints is no result
            start_new_session=True,  # Ctrl-C is for this process, and a process group can be ended as a whole
            creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
        ) as process:
            try:
                process.wait(TIME_LIMIT)
            except subprocess.TimeoutExpired:
                raise UserError(
                    f"{escape(path)} ran for more than {TIME_LIMIT} seconds; "
                    'put what trains or writes under: if __name__ == "__main__":'
                ) from None
            finally:
                with suppress(OSError):  # all processes have ended
                    os.killpg(process.pid, signal.SIGKILL) if hasattr(os, "killpg") else process.kill()
        with suppress(OSError, ValueError):  # the answer is missing or incomplete
            return Answer.model_validate_json(answer.read_bytes())
    end = f"with code {process.returncode}"
    if process.returncode < 0:
        end = f"by signal {signal.Signals(-process.returncode).name}"
    raise UserError(f"{escape(path)} ended its process before the check, {end}")
