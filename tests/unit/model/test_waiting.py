"""Threads spin on an idle machine and sleep on a busy one."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import environment

from minigpt.model import waiting

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")


class Stop(Exception):
    """Ends the endless loop of `_watch`."""


@pytest.fixture
def teams(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Record the threads that are started, and end them with the test."""
    started: list[str] = []
    start = threading.Thread.start
    monkeypatch.setattr(threading.Thread, "start", lambda self: (started.append(self.name), start(self))[1])
    yield started
    waiting.IS_BUSY.clear()


def watch(monkeypatch: pytest.MonkeyPatch, *shares: float) -> list[bool]:
    """Let `_watch` measure these shares of time waited, and return `IS_BUSY` after each."""
    clock, waited, states = 0.0, 0.0, []
    left = iter(shares)

    def sleep(seconds: float) -> None:
        nonlocal clock, waited
        if clock and threading.current_thread() is main:
            states.append(waiting.IS_BUSY.is_set())
        if threading.current_thread() is main:
            share = next(left, None)
            if share is None:
                raise Stop
            clock, waited = clock + seconds, waited + share * seconds
        else:
            event.wait(0.001)

    main, event = threading.current_thread(), threading.Event()
    monkeypatch.setattr(waiting.time, "sleep", sleep)
    monkeypatch.setattr(waiting.time, "monotonic", lambda: clock)
    monkeypatch.setattr(waiting, "seconds_waited", lambda: waited)
    with pytest.raises(Stop):
        waiting._watch()
    return states


def test_a_second_team_lives_as_long_as_the_machine_is_busy(monkeypatch: pytest.MonkeyPatch, teams: list[str]) -> None:
    states = watch(monkeypatch, 0.05, 0.8, 0.5, 0.5, 0.02, 0.0, 0.9)
    assert states == [False, True, True, True, False, False, True]
    assert teams == ["second team"] * 2


def test_without_proc_nothing_is_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Some sandboxes have no /proc, and some kernels count nothing there."""
    monkeypatch.setattr(waiting, "TASKS", tmp_path / "none")
    assert waiting.seconds_waited() == 0
    (tmp_path / "1").mkdir()
    (tmp_path / "2").mkdir()
    (tmp_path / "2/schedstat").write_text("70 2000000000 9\n", encoding="ascii")
    monkeypatch.setattr(waiting, "TASKS", tmp_path)
    assert waiting.seconds_waited() == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variables", "is_watched"),
    [({}, True), ({"GOMP_SPINCOUNT": "7"}, False), ({"OMP_WAIT_POLICY": "active"}, False)],
    ids=["default", "own spin count", "own policy"],
)
@LINUX
def test_users_who_set_openmp_keep_their_choice(variables: dict[str, str], is_watched: bool) -> None:
    code = (
        "from minigpt.world import set_variables; set_variables(); import os, json, threading;"
        "from minigpt.model.waiting import adapt_to_load; adapt_to_load();"
        "names = {thread.name for thread in threading.enumerate()};"
        "print(json.dumps(['load' in names, os.environ.get('GOMP_SPINCOUNT')]))"
    )
    inherited = {name: value for name, value in environment().items() if name != "GOMP_SPINCOUNT"}
    done = subprocess.run([sys.executable, "-c", code], env=inherited | variables, capture_output=True, check=True)
    count = variables.get("GOMP_SPINCOUNT", None if variables else "10000")
    assert json.loads(done.stdout) == [is_watched, count]
