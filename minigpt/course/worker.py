"""The process that check.py starts: run the reader's file, compare its functions with minigpt's, write the answer."""

import importlib.util
import os
import re
import signal
import sys
import traceback
from pathlib import Path
from types import ModuleType

import torch

from minigpt.course.cases import CASES
from minigpt.course.check import TIME_LIMIT, Answer
from minigpt.course.comparison import Mistake, Skipped, shorten
from minigpt.errors import escape
from minigpt.world import free_memory

LEAST_MEMORY = 2 << 30
"""The lowest limit of memory for a file, in bytes."""


def run_file(path: Path) -> ModuleType:
    """Return the reader's file as a module, which can import other files from its folder."""
    name = "mygpt" if path.stem in sys.modules else path.stem
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.append(str(path.parent))  # last, or torch could import the reader's files: it imports some modules late
    spec.loader.exec_module(module)
    return module


def check(chapter: int, path: Path) -> Answer:
    """Compare chapter after chapter, up to `chapter` or to the first difference."""
    answer, at, module, itself = Answer(), path.name, ModuleType("not run yet"), False
    try:
        itself = imports_itself(path)  # before the file runs: it may delete itself
        module = run_file(path)
        for number, cases in enumerate(CASES[:chapter], 1):
            answer.passed[number], at = [], f"chapter {number}"
            torch.manual_seed(number)
            try:
                for case in cases(module):
                    at = f"chapter {number}: {case.name}"
                    if problem := case.problem():
                        answer.problem = escape(f"{at} {problem}")
                        return answer
                    answer.passed[number].append(case.name)
                    at = f"chapter {number}, after {case.name}"
            except Skipped as error:
                answer.notices.append(escape(error))
    except BaseException as error:
        if isinstance(error, AttributeError) and error.obj is module:
            at = f"chapter {len(answer.passed)}"
            problem = f"{path.name} has no {error.name}"
            if itself:
                problem += ", and imports itself: write what uses your functions in another file"
            elif len(answer.passed) < chapter:
                problem += f"; the check of chapter {chapter} includes the chapters before it"
        else:
            problem = where(error, path)
        answer.problem = escape(f"{at}: {problem}")
    return answer


def imports_itself(path: Path) -> bool:
    """Return whether a file imports itself."""
    name = re.escape(os.fsencode(path.stem))
    return bool(re.search(rb"^\s*(?:from|import)\s+" + name + rb"\b", path.read_bytes(), re.MULTILINE))


def where(error: BaseException, path: Path) -> str:
    """Return an error as one line of text, with the number of the last line of the reader's file in the traceback."""
    if isinstance(error, Mistake):
        return str(error)
    try:
        message = next(iter(str(error).splitlines()), "")
    except BaseException:  # the reader's own class of errors may fail
        message = ""
    line, problem = None, f"{type(error).__name__}: {message}".removesuffix(": ")
    if isinstance(error, SyntaxError):
        line, problem = error.lineno, error.msg
    else:
        for frame, number in traceback.walk_tb(error.__traceback__):  # a list may be too large, if memory is short
            if frame.f_code.co_filename == str(path):
                line = number
    return (f"line {line}: " if line else "") + shorten(problem, 200)


def set_limits() -> None:
    """Limit the time of this process, except on Windows, and on Linux its memory."""
    try:
        import resource
    except ImportError:
        return
    signal.alarm(TIME_LIMIT)  # if check.py, which ends this process, was killed itself
    free, unlimited = free_memory(), resource.RLIM_INFINITY
    if free and resource.getrlimit(resource.RLIMIT_DATA)[0] == unlimited:
        # The file gets a MemoryError, which names its line, before the system ends the process.
        resource.setrlimit(resource.RLIMIT_DATA, (max(free, LEAST_MEMORY), unlimited))


def main() -> None:
    """Check a file. The arguments of the process are the chapter, the file, and where to write the answer."""
    chapter, file, out = sys.argv[1:]
    process = os.getpid()
    set_limits()
    sys.argv[:] = [file]
    sys.stdout = sys.stderr  # which has no buffer to lose
    answer = check(int(chapter), Path(file).resolve())
    if os.getpid() == process:  # else the file called os.fork
        Path(out).write_text(answer.model_dump_json(), encoding="utf-8")
    os._exit(0)  # without waiting for threads of the file
