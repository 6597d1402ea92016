"""The process in which `course check` runs the reader's file: its answer, its end, and what it may import."""

import os
import signal
import subprocess
import sys
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
TENSOR = "import torch\ndef vocabulary(text): return torch.zeros(3)"
LIST = "def vocabulary(text): return sorted(set(text))\ndef encode(text, letters): return [1]"


@pytest.fixture
def file(empty_folder: Path) -> Path:
    return empty_folder / "mygpt.py"


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("def vocabulary(", "mygpt.py: line 1: '(' was never closed"),
        ("import nothing_like_this", "line 1: ModuleNotFoundError: No module named 'nothing_like_this'"),
        ("import sys; sys.modules.pop('mygpt')", "chapter 1: mygpt.py has no vocabulary"),
        ("import os; os.remove('mygpt.py')", "chapter 1: mygpt.py has no vocabulary"),
        ("from mygpt import *", "has no vocabulary, and imports itself: write what uses"),
        (UNPRINTABLE, "mygpt.py: line 5: Strange"),
        (r"raise ValueError('\udcff')", r"ValueError: \udcff"),
        ("raise ValueError('x' * 3_000_000)", f"mygpt.py: line 1: ValueError: {'x' * 185}..."),
        ("def vocabulary(text): return {*text}", "vocabulary(text) is {"),
        ("def vocabulary(text): return text[99]", "line 1: IndexError: string index out of range"),
        (TENSOR, "vocabulary(text) is a tensor of shape (3,), expected"),
        (LIST, "encode(text, letters) is [1], expected a tensor of shape (33,)"),
    ],
)
def test_bad_code_gets_one_line(file: Path, code: str, problem: str) -> None:
    file.write_text(code)
    answer = check_here(1, file).problem
    assert problem in answer
    assert "\n" not in answer
    assert len(answer) < 300


def test_a_later_chapter_needs_the_chapters_before_it(file: Path) -> None:
    file.write_text(FIRST)
    problem = "chapter 2: mygpt.py has no may_see"
    assert check_here(2, file).problem == problem
    assert check_here(3, file).problem == f"{problem}; the check of chapter 3 includes the chapters before it"


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse the name")
def test_a_name_may_be_no_text(file: Path) -> None:
    odd = file.with_name("\udcff.py")
    odd.write_text("x = 1")
    assert check_here(1, odd).problem == r"chapter 1: \udcff.py has no vocabulary"


def test_a_file_that_is_not_code_is_refused(file: Path) -> None:
    text = file.with_suffix(".txt")
    text.touch()
    with pytest.raises(UserError, match=r"mygpt.txt is not named as Python code: rename it to mygpt.py"):
        check(1, text)


HOSTILE = """
import atexit, helper, os, signal, subprocess, sys, threading, time
print("written")
os.write(1, b"written")
atexit.register(lambda: print(123))
threading.Thread(target=time.sleep, args=(300,)).start()
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
assert sys.stdin.read() == ""
if os.name != "nt":
    import resource
    assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= 120
    assert sys.platform != "linux" or resource.getrlimit(resource.RLIMIT_DATA)[0] != resource.RLIM_INFINITY
    if not (os.fork() and os.fork()):
        os.setpgid(0, 0)
os.closerange(3, 200)
"""


@pytest.mark.slow
def test_nothing_that_the_file_does_changes_the_answer(file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """It prints, shadows modules, starts a thread and processes, reads, and closes descriptors."""
    for name, code in (("torch", "raise ValueError"), ("random", "raise ValueError"), ("helper", "help = 3")):
        file.with_name(f"{name}.py").write_text(code)
    file.write_text(FIRST + HOSTILE)
    answer = check(1, file)
    assert answer.problem == ""
    assert len(answer.passed[1]) == 6
    out, err = capfd.readouterr()
    assert out == ""
    assert "written" in err
    assert "Traceback" not in err


FORGE = """
import os
for descriptor in range(3, 64):
    try:
        os.write(descriptor, b'{"passed": {"1": ["x"]}, "problem": ""}')
    except OSError:
        pass
os._exit(0)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "end"),
    [
        (FORGE, "with code 0"),
        ("import os; os._exit(3)", "with code 3"),
        pytest.param("import os; os.kill(os.getpid(), 11)", "by signal SIGSEGV", marks=POSIX),
    ],
)
def test_the_end_of_the_process_is_named(file: Path, code: str, end: str) -> None:
    file.write_text(code)
    with pytest.raises(UserError, match=f"mygpt.py ended its process before the check, {end}"):
        check(1, file)


SLEEPERS = """
import os, subprocess, sys
code = "import time; print('ready', flush=True); open('ready', 'w').close(); time.sleep(600)"
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
@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143), ("", 1)])
def test_the_file_ends_with_the_check(file: Path, name: str, code: int) -> None:
    """A signal ends the check, or the time limit does. Its stderr ends only when all processes of the file have."""
    file.write_text(SLEEPERS)
    program = f"{'' if name else EXPIRE}\nfrom minigpt.cli.main import main; main()"
    command = [sys.executable, "-c", program, "course", "check", "1"]
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stderr
        assert process.stdout
        assert process.stderr.readline() == b"ready\n"
        if name:
            process.send_signal(getattr(signal, name))
        lines = process.stderr.read().decode().splitlines()
        assert process.stdout.read() == b""
    assert process.returncode == code
    assert len(lines) <= 1, lines
    assert name or "ran for more than 120 seconds; put what trains" in lines[0]
