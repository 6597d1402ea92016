"""A process that check.py started: run the reader's file, compare its functions with minigpt's, and send the answer.

Usage: CHAPTER FILE. Standard input is a pipe that closes when the parent ends. Standard output receives the answer as
JSON: {"passed": {CHAPTER: [CASE, ...]}, "problem": ""}. The file sees neither: it has an empty standard input, and
what it prints goes to stderr.
"""

import importlib.util
import json
import os
import re
import signal
import sys
import threading
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from minigpt.course.cases import CASES
from minigpt.course.comparison import Mistake, shorten


def run_file(path: Path) -> ModuleType:
    """Return the reader's file as a module, which can import others from its folder."""
    name = "mygpt" if path.stem in sys.modules else path.stem
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.append(str(path.parent))  # last, or torch could import the reader's files: it imports some modules late
    spec.loader.exec_module(module)
    return module


def check(chapter: int, path: Path) -> dict[str, Any]:
    """Compare chapter after chapter, up to `chapter`. Return what agrees, by chapter, and the first problem."""
    passed: dict[int, list[str]] = {}
    at, module = path.name, None
    try:
        module = run_file(path)
        for number, cases in enumerate(CASES[:chapter], 1):
            passed[number], at = [], f"chapter {number}"
            torch.manual_seed(number)
            for case in cases(module):
                at = f"chapter {number}: {case.name}"
                if problem := case.problem():
                    return {"passed": passed, "problem": f"{at} {problem}"}
                passed[number].append(case.name)
                at = f"chapter {number}, after {case.name}"
    except BaseException as error:
        if isinstance(error, AttributeError) and module is not None and error.obj is module:
            at = f"chapter {len(passed)}"
            problem = f"{path.name} has no {error.name}"
            if imports_itself(path):
                problem += ", and imports itself: write what uses your functions in another file"
            elif len(passed) < chapter:
                problem += f"; the check of chapter {chapter} includes the chapters before it"
        else:
            problem = where(error, path)
        return {"passed": passed, "problem": f"{at}: {problem}"}
    return {"passed": passed, "problem": ""}


def imports_itself(path: Path) -> bool:
    """Return whether a file imports the module that it is."""
    return bool(re.search(rf"^\s*(?:from|import)\s+{re.escape(path.stem)}\b".encode(), path.read_bytes(), re.MULTILINE))


def where(error: BaseException, path: Path) -> str:
    """Return an error in one line, with the last line of the reader's file that led to it."""
    if isinstance(error, Mistake):
        return str(error)
    try:
        message = next(iter(str(error).splitlines()), "")
    except BaseException:  # the reader's own class of errors may fail
        message = ""
    if isinstance(error, SyntaxError):
        lines, problem = [error.lineno], error.msg
    else:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == path]
        problem = f"{type(error).__name__}: {message}".removesuffix(": ")
    line = f"line {lines[-1]}: " if lines and lines[-1] else ""
    return line + shorten(problem, 200)


def detach() -> int:
    """Hide the pipe to the parent, and the file for the answer, from the reader's file. Return the answer's descriptor.

    When the pipe closes, end.
    """

    def follow() -> None:
        os.read(parent, 1)
        end()

    parent, answer = os.dup(0), os.dup(1)
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.dup2(2, 1)
    os.close(empty)
    sys.stdout = sys.stderr  # which has no buffer to lose
    threading.Thread(target=follow, daemon=True).start()
    return answer


def end() -> None:
    """End this process, and the processes that the reader's file started, without waiting for anything of the file."""
    if hasattr(os, "killpg"):
        os.killpg(0, signal.SIGKILL)
    os._exit(0)


if __name__ == "__main__":
    answer = detach()
    chapter, file = sys.argv[1:]
    sys.argv[:] = [file]
    result = json.dumps(check(int(chapter), Path(file).resolve()))
    os.write(answer, result.encode())
    end()
