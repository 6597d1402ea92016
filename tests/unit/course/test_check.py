"""The process in which `course check` runs the reader's file: its answer, its end, and what it may import."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command_line import environment
from course_pages import blocks, page

from minigpt.course.chapters import CHAPTERS
from minigpt.course.check import check
from minigpt.course.worker import check as check_here
from minigpt.errors import UserError

FIRST = "\n\n".join(blocks(page(CHAPTERS[0]), "mygpt.py"))
"""The code of chapter 1."""
POSIX = pytest.mark.skipif(os.name == "nt", reason="needs POSIX")
UNPRINTABLE = """
class Strange(Exception):
    def __str__(self): raise self

raise Strange
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "mygpt.py"


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("def vocabulary(", "mygpt.py: line 1: '(' was never closed"),
        ("x = '\0'", "source code string cannot contain null bytes"),
        ("import nothing_like_this", "line 1: ModuleNotFoundError: No module named 'nothing_like_this'"),
        ("print('hello')", "chapter 1: mygpt.py has no vocabulary"),
        ("import sys; sys.modules.pop('mygpt')", "chapter 1: mygpt.py has no vocabulary"),
        (
            "from mygpt import *",
            "has no vocabulary, and imports itself: write what uses your functions in another file",
        ),
        ("raise AttributeError('x')", "mygpt.py: line 1: AttributeError: x"),
        ("raise SystemExit(0)", "mygpt.py: line 1: SystemExit: 0"),
        ("raise KeyboardInterrupt", "mygpt.py: line 1: KeyboardInterrupt"),
        (UNPRINTABLE, "mygpt.py: line 5: Strange"),
        ("raise ValueError('x' * 3_000_000)", f"mygpt.py: line 1: ValueError: {'x' * 185}..."),
        ("def vocabulary(text): return {*text}", "vocabulary(text) is {"),
        ("def vocabulary(text): return text[99]", "line 1: IndexError: string index out of range"),
        (
            "import torch\ndef vocabulary(text): return torch.zeros(3)",
            "vocabulary(text) is a tensor of shape (3,), exp",
        ),
        (
            "def vocabulary(text): return sorted(set(text))\ndef encode(text, letters): return [1]",
            "encode(text, letters) is [1], expected a tensor of shape (33,)",
        ),
    ],
)
def test_bad_code_gets_one_line(file: Path, code: str, problem: str) -> None:
    file.write_text(code)
    answer = check_here(1, file)["problem"]
    assert problem in answer
    assert "\n" not in answer
    assert len(answer) < 300


def test_a_later_chapter_needs_the_chapters_before_it(file: Path) -> None:
    file.write_text(FIRST)
    problem = "chapter 2: mygpt.py has no may_see"
    assert check_here(2, file)["problem"] == problem
    assert check_here(3, file)["problem"] == f"{problem}; the check of chapter 3 includes the chapters before it"


def test_another_file_may_import_the_readers(file: Path) -> None:
    file.write_text(FIRST)
    other = file.with_name("try1.py")
    other.write_text("from mygpt import *")
    assert check_here(1, other)["problem"] == ""


def test_a_file_that_is_not_code_is_refused(file: Path) -> None:
    with pytest.raises(UserError, match=r"none.py is not a file"):
        check(1, file.with_name("none.py"))
    other = file.with_suffix(".txt")
    other.write_text(FIRST)
    with pytest.raises(UserError, match=r"mygpt.txt is not named as Python code: rename it to mygpt.py"):
        check(1, other)


@pytest.mark.slow
def test_nothing_that_the_file_does_changes_the_answer(file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """It prints, also at the end, forges an answer, shadows modules, starts a thread and a process, and reads."""
    (file.parent / "torch.py").write_text("raise ValueError('not torch')")
    (file.parent / "random.py").write_text("raise ValueError('not random')")
    (file.parent / "helper.py").write_text("help = 3")
    file.write_text(f"""{FIRST}
import atexit, helper, json, os, random, subprocess, sys, threading, time
os.write(1, b"written")
print(json.dumps({{"passed": {{}}, "problem": ""}}))
atexit.register(lambda: print(123))
threading.Thread(target=time.sleep, args=(300,)).start()
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
assert sys.stdin.read() == ""
""")
    started = time.monotonic()
    passed = check(1, file)
    assert time.monotonic() - started < 120
    assert {chapter: len(names) for chapter, names in passed.items()} == {1: 6}
    out, err = capfd.readouterr()
    assert out == ""
    assert "written" in err
    assert '"passed"' in err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "end"),
    [
        ("import os; os._exit(3)", "ended its process before the check, with code 3"),
        pytest.param(
            "import os; os.kill(os.getpid(), 11)", "ended its process before the check, by signal SIGSEGV", marks=POSIX
        ),
    ],
)
def test_the_end_of_the_process_is_named(file: Path, code: str, end: str) -> None:
    file.write_text(code)
    with pytest.raises(UserError, match=f"mygpt.py {end}"):
        check(1, file)


SLEEPERS = """
import os, subprocess, sys
code = "import time; open('ready', 'w').close(); print('ready', flush=True); time.sleep(600)"
subprocess.Popen([sys.executable, "-c", code], stdout=2)
while True: pass
"""
EXPIRE = """
import os, subprocess, time
wait = subprocess.Popen.wait

def expire(process, timeout=None):
    while timeout and not os.path.exists("ready"):
        time.sleep(0.01)
    if timeout:
        raise subprocess.TimeoutExpired("python", timeout)
    return wait(process)

subprocess.Popen.wait = expire
"""


@pytest.mark.slow
@POSIX
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL, None])
def test_the_file_ends_with_the_check(file: Path, number: signal.Signals | None) -> None:
    """A signal ends the check, or the time limit does. Its stderr ends only when all processes of the file have."""
    file.write_text(SLEEPERS)
    program = f"{'' if number else EXPIRE}\nfrom minigpt.cli.main import main; main()"
    command = [sys.executable, "-c", program, "course", "check", "1"]
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stderr
        assert process.stdout
        assert process.stderr.readline() == b"ready\n"
        if number:
            process.send_signal(number)
        lines = process.stderr.read().decode().splitlines()
        assert process.stdout.read() == b""
    assert process.returncode == {signal.SIGINT: 130, None: 1}.get(number, -(number or 0))
    assert len(lines) <= 1, lines
    assert number or "ran for more than 120 seconds; put what trains" in lines[0]
