"""A process that check.py started: run the reader's file, compare its functions with minigpt's, and write the answer.

Usage: CHAPTER FILE ANSWER. The file does not see the answer: what it prints goes to stderr, and it may close any
descriptor.
"""

import importlib.util
import os
import re
import signal
import sys
import threading
import time
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
"""Bytes that a file may always use."""


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


def check(chapter: int, path: Path) -> Answer:
    """Compare chapter after chapter, up to `chapter`."""
    answer = Answer()
    at, module, itself = path.name, None, False
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
        if isinstance(error, AttributeError) and module is not None and error.obj is module:
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
    """Return whether a file imports the module that it is."""
    name = re.escape(os.fsencode(path.stem))
    return bool(re.search(rb"^\s*(?:from|import)\s+" + name + rb"\b", path.read_bytes(), re.MULTILINE))


def where(error: BaseException, path: Path) -> str:
    """Return an error in one line, with the last line of the reader's file that led to it."""
    if isinstance(error, Mistake):
        return str(error)
    try:
        message = next(iter(str(error).splitlines()), "")
    except BaseException:  # the reader's own class of errors may fail
        message = ""
    line: int | None = None
    if isinstance(error, SyntaxError):
        line, problem = error.lineno, error.msg
    else:
        for frame, number in traceback.walk_tb(error.__traceback__):  # a list may be too large, if memory is short
            if frame.f_code.co_filename == str(path):
                line = number
        problem = f"{type(error).__name__}: {message}".removesuffix(": ")
    return (f"line {line}: " if line else "") + shorten(problem, 200)


def limit_memory() -> None:
    """Let the file get a MemoryError, which names its line, before the system ends the process."""
    try:
        import resource
    except ImportError:  # on Windows
        return
    free, unlimited = free_memory(), resource.RLIM_INFINITY
    if free and resource.getrlimit(resource.RLIMIT_DATA)[0] == unlimited:
        resource.setrlimit(resource.RLIMIT_DATA, (max(free, LEAST_MEMORY), unlimited))


def follow(parent: int) -> None:
    """End this process after its parent. Windows does not report that, so end after the time limit as well."""
    for _ in range(TIME_LIMIT):
        time.sleep(1)
        if os.getppid() != parent:
            break
    end()


def end() -> None:
    """End this process, and the processes that the reader's file started, without waiting for anything of the file."""
    if hasattr(os, "killpg"):
        os.killpg(0, signal.SIGKILL)
    os._exit(0)


if __name__ == "__main__":
    process = os.getpid()
    threading.Thread(target=follow, args=(os.getppid(),), daemon=True).start()
    limit_memory()
    sys.stdout = sys.stderr  # which has no buffer to lose
    chapter, file, out = sys.argv[1:]
    sys.argv[:] = [file]
    found = check(int(chapter), Path(file).resolve())
    if os.getpid() != process:  # the file called os.fork
        os._exit(0)
    Path(out).write_text(found.model_dump_json(), encoding="utf-8")
    end()
