"""`minigpt train --processes N`: the launcher, with workers that are short programs instead of training."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import environment

from minigpt.cli import launch as launcher

CODES = "import os, sys; sys.exit([{}][int(os.environ['RANK'])])"
LISTEN = "import os, sys; read = os.read(0, 1); sys.exit(128 + read[0] if read else 99)"
Launch = Callable[..., int]


@pytest.fixture
def launch(monkeypatch: pytest.MonkeyPatch) -> Launch:
    """A function that launches workers that run a program."""
    start: Any = subprocess.Popen

    def call(program: str, processes: int = 2) -> int:
        monkeypatch.setattr(
            subprocess, "Popen", lambda command, **options: start([sys.executable, "-c", program], **options)
        )
        return launcher.launch(processes)

    return call


@pytest.mark.parametrize(("processes", "cores", "threads", "warns"), [(2, 8, "4", False), (3, 2, "1", True)])
def test_workers_share_the_cores(
    launch: Launch,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    processes: int,
    cores: int,
    threads: str,
    warns: bool,
) -> None:
    monkeypatch.setattr(launcher, "available_cores", lambda: cores)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    names = "OMP_NUM_THREADS", "WORLD_SIZE", "LOCAL_WORLD_SIZE"
    expected = dict(zip(names, (threads, str(processes), str(processes)), strict=True))
    assert launch(f"import os; assert os.environ.items() >= {expected}.items()", processes) == 0
    assert ("take turns: fewer would be faster" in capsys.readouterr().err) == warns


@pytest.mark.parametrize(("codes", "expected"), [("0, 0", 0), ("0, 3", 3), ("143, 0", 143)])
def test_the_exit_code_is_that_of_the_worker_that_failed(launch: Launch, codes: str, expected: int) -> None:
    assert launch(CODES.format(codes)) == expected


@pytest.mark.skipif(os.name == "nt", reason="needs POSIX")
def test_after_a_worker_was_killed_the_others_are_too(launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "PATIENCE", 0.1)
    victim = "os.environ['RANK'] == '1' and os.kill(os.getpid(), signal.SIGKILL)"
    assert launch(f"import os, signal, time; {victim}; time.sleep(60)") == 137


@pytest.mark.skipif(os.name == "nt", reason="needs POSIX")
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_to_the_launcher_reaches_the_workers(launch: Launch, name: str) -> None:
    number = signal.Signals[name]
    assert launch(f"import os; os.kill(os.getppid(), {number}); {LISTEN}") == 128 + number


@pytest.mark.skipif(os.name == "nt", reason="needs POSIX")
def test_workers_notice_that_the_launcher_was_killed(tmp_path: Path) -> None:
    """Both workers write a file when the pipe closes."""
    worker = "import os; print(flush=True); os.read(0, 1); open(os.environ['RANK'], 'w').close()"
    program = (
        "import subprocess, sys; from minigpt.cli.launch import launch; start = subprocess.Popen\n"
        f"subprocess.Popen = lambda _, **options: start([sys.executable, '-c', {worker!r}], **options)\n"
        "launch(2)"
    )
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline(), process.stdout.readline()
        process.kill()
        process.stdout.read()  # until the workers have ended
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"]


def test_workers_that_cannot_start_leave_none_behind(launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []
    start: Any = subprocess.Popen

    def fail_later(command: Any, **options: Any) -> Any:
        if started:
            raise BlockingIOError("no more processes")
        started.append(start([sys.executable, "-c", LISTEN], **options))
        return started[0]

    monkeypatch.setattr(subprocess, "Popen", fail_later)
    with pytest.raises(BlockingIOError):
        launcher.launch(2)
    assert started[0].returncode == 99
