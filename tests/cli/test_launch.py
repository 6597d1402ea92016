"""`minigpt train --processes N` and how torchrun's launcher ends, without starting a process."""

import logging
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest
import torch.distributed.launcher.api as launcher
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from minigpt.cli.launch import launch
from minigpt.model import device


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Return a function that launches processes on some cores. The launcher raises an error, if one is given."""
    for name in ("OMP_NUM_THREADS", "PYTHONSAFEPATH"):
        monkeypatch.setenv(name, "restored later")
        monkeypatch.delenv(name)
    monkeypatch.setattr(logging, "disable", lambda level: None)

    def call(processes: int, cores: int, error: BaseException | None = None) -> int:
        def run(*_: str) -> None:
            if error:
                raise error

        monkeypatch.setattr(device, "available_cores", lambda: cores)
        monkeypatch.setattr(launcher, "elastic_launch", lambda config, program: run)
        return launch(processes)

    return call


@pytest.mark.parametrize(("processes", "cores", "threads", "warns"), [(2, 8, "4", False), (3, 2, "1", True)])
def test_processes_share_the_cores(
    ends: Any, capsys: pytest.CaptureFixture[str], processes: int, cores: int, threads: str, warns: bool
) -> None:
    assert ends(processes, cores) == 0
    assert os.environ["OMP_NUM_THREADS"] == threads
    assert os.environ["PYTHONSAFEPATH"] == "1"
    expected = f"{processes} processes on {cores} cores take turns: fewer would be faster\n"
    assert capsys.readouterr().err == expected * warns


@pytest.mark.parametrize(("exit_code", "expected"), [(1, 1), (143, 143), (-signal.SIGKILL, 137)])
def test_the_exit_code_is_that_of_the_process_that_failed(ends: Any, exit_code: int, expected: int) -> None:
    failure = ProcessFailure(local_rank=1, pid=99_999, exitcode=exit_code, error_file="none")
    assert ends(2, 2, ChildFailedError("minigpt", {1: failure})) == expected


def test_a_signal_gives_its_exit_code(ends: Any) -> None:
    assert ends(2, 2, SignalException("stopped", signal.SIGTERM)) == 143
