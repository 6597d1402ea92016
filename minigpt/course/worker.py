"""A process that check.py started: run the reader's file, compare its functions with minigpt's, and send the answer.

Usage: CHAPTER FILE. Standard output receives the answer as JSON: {"passed": {CHAPTER: [CASE, ...]}, "problem": ""}.
What the file prints goes to stderr.
"""

import importlib.util
import json
import os
import sys
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
            if len(passed) < chapter:
                problem += f"; the check of chapter {chapter} includes the chapters before it"
        else:
            problem = where(error, path)
        return {"passed": passed, "problem": f"{at}: {problem}"}
    return {"passed": passed, "problem": ""}


def where(error: BaseException, path: Path) -> str:
    """Return an error in one line, with the last line of the reader's file that led to it."""
    if isinstance(error, Mistake):
        return str(error)
    if isinstance(error, SyntaxError):
        lines, problem = [error.lineno], error.msg
    else:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == path]
        problem = f"{type(error).__name__}: {error}".removesuffix(": ").partition("\n")[0]
    line = f"line {lines[-1]}: " if lines and lines[-1] else ""
    return line + shorten(problem, 200)


if __name__ == "__main__":
    chapter, file = sys.argv[1:]
    sys.argv[:] = [file]
    answer = os.dup(1)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    os.write(answer, json.dumps(check(int(chapter), Path(file).resolve())).encode())
    os._exit(0)  # without waiting for threads of the file
