"""Interleaved measurements: one process per side, one side at a time, and no process left behind."""

import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from bench.report import report
from bench.sides import measure_interleaved, start_side
from command_line import HANG

from minigpt.errors import InsufficientMemoryError, UserError

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).resolve().parents[3]


def test_sides_have_processes_of_their_own_and_work_one_at_a_time() -> None:
    messages: list[str] = []
    build, log = "bench_sides.working", messages.append
    with start_side("a", build, 0.02, log=log) as a, start_side("b", build, 0.04, log=log) as b:
        assert len({a.facts["pid"], b.facts["pid"], os.getpid()}) == 3
        comparison = measure_interleaved([a, b], 3, "megabytes_per_second", what="naps")
    assert not a.process.is_alive()
    assert not b.process.is_alive()
    spans = sorted((round_["began"], round_["ended"]) for side in (a, b) for round_ in side.rounds)
    assert len(spans) == 6
    assert all(ended <= began for (_, ended), (began, _) in itertools.pairwise(spans))
    assert messages[:2] == ["ready", "ready"]
    assert len(messages) == 5
    assert comparison["ratios"]["b"]["rounds"] == [2.0, 2.0, 2.0]
    assert comparison["sides"]["a"]["summary"] == {"megabytes_per_second": 50}
    machine = report("naps", {}, [comparison], "cpu")["machine"]
    assert machine.keys() == {"processor", "cores", "system", "python", "torch", "minigpt"}


@pytest.mark.parametrize(
    ("how", "raised", "problem"),
    [
        ("user", UserError, "^no such text$"),
        ("disk", OSError, "full"),
        pytest.param("memory", InsufficientMemoryError, "out of memory in a"),
        pytest.param("bug", RuntimeError, "Traceback(.|\n)*KeyError"),
        pytest.param(
            *("killed", UserError, r"the process of a exited \(SIGKILL\)"),
            marks=pytest.mark.skipif(os.name == "nt", reason="needs POSIX"),
        ),
    ],
)
def test_the_parent_raises_the_exception_of_a_side(how: str, raised: type[Exception], problem: str) -> None:
    with pytest.raises(raised, match=problem), start_side("a", "bench_sides.failing", how, log=print) as side:
        side.measure()
    assert not side.process.is_alive()


def test_a_side_that_was_killed_while_it_waited_is_an_error() -> None:
    """The pipe is then broken, but a BrokenPipeError would look like an output that nobody reads."""
    with start_side("a", "bench_sides.waiting", log=print) as side:
        side.process.kill()
        side.process.join()
        with pytest.raises(UserError, match="the process of a exited"):
            side.measure()


@pytest.mark.skipif(os.name == "nt", reason="needs POSIX")
@pytest.mark.parametrize("name", ["SIGINT", "SIGKILL"])
def test_a_side_ends_silently_with_its_parent(name: str) -> None:
    code = f"""
import sys
sys.path += {[str(ROOT / "tests/support"), str(ROOT / "scripts")]!r}
from bench.sides import start_side
with start_side("a", "bench_sides.waiting", log=print) as side:
    print(flush=True)
    sys.stdin.read()
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    number = signal.Signals[name]
    with subprocess.Popen(
        [sys.executable, "-c", code], env=environment, text=True, start_new_session=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as parent:  # fmt: skip
        assert parent.stdout
        parent.stdout.readline()
        if number == signal.SIGINT:
            os.killpg(parent.pid, number)
        else:
            parent.kill()
        _, err = parent.communicate(timeout=HANG)  # returns when the side no longer holds the inherited pipe
        assert err.count("Traceback") == (number == signal.SIGINT)  # of the parent, not of the side
