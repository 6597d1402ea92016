"""Training processes to be killed and starved, started by forking a process that has imported torch already.

A forked child runs the same `minigpt.cli.main` on the same arguments as a process of its own would, and is killed,
waited for and resumed as one; only the two seconds of imports are saved.
"""

import contextlib
import ctypes
import functools
import importlib
import mmap
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

SHIM = Path(__file__).resolve().parents[2] / "tests/support/faults.c"
PHASES = ("starting up", "before the first step", "in a step", "in an evaluation", "in a save", "at the end")
START, READY, STEP, EVALUATION, SAVE, END = range(len(PHASES))


class Board(ctypes.Structure):
    """What a child tells its parent as it goes, in memory that both see."""

    forked: int
    """1 in a forked child; a process of its own has no board to write on."""
    phase: int
    step: int
    saved: int
    """The step of the save that was done last."""
    entries: Any
    """How often each phase began."""
    nanoseconds: Any
    """How long each phase took in all."""
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("forked", "phase", "step", "saved")),
        *((name, ctypes.c_int64 * len(PHASES)) for name in ("entries", "nanoseconds")),
    )

    def seconds(self, phase: int) -> float:
        """Return how long a phase took on average."""
        return float(self.nanoseconds[phase] / 1e9 / max(1, self.entries[phase]))

    def note(self, phase: int, call: Callable[[], Any]) -> Any:
        """Make the call as this phase; then it is the phase before again. Between two steps counts as a step."""
        before, began = self.phase, time.perf_counter_ns()
        self.phase = phase
        self.entries[phase] += 1
        result = call()
        self.nanoseconds[phase] += time.perf_counter_ns() - began
        self.phase = {READY: END, STEP: STEP}.get(phase, before)
        return result


@dataclass(frozen=True)
class Fault:
    """What goes wrong below `root`: at the `at`-th operation there a signal (negative) or an errno; or nothing (0)."""

    root: Path
    at: int = 0
    what: int = 0
    then: str = ""
    """The kinds of operation that go on failing."""
    half: bool = False
    """Do a write by half first."""
    log: Path | None = None
    """Where to write down what is done below `root`."""


class Kill(NamedTuple):
    """When a process is killed: so many seconds after the n-th beginning of a phase."""

    phase: int
    entry: int
    delay: float
    signal: signal.Signals


@dataclass(frozen=True)
class Ended:
    """How a process ended: its exit code, negative for a signal; what it printed; the board when it was killed."""

    code: int
    output: str
    board: Board
    killed: bool = False
    """Whether it was there to be sent the signal."""

    @property
    def refusal(self) -> str | None:
        """What is wrong with the last words of a process that gave up: they must be one line, and exit code 1."""
        if self.code != 1:
            return f"exit code {self.code}, not 1: {self.last_line}"
        if "Traceback" in self.output:
            return f"a traceback: {self.last_line}"
        lines = sum(line.startswith("minigpt: ") for line in self.output.splitlines())
        return None if lines == 1 else f"{lines} lines say why it ended"

    @property
    def last_line(self) -> str:
        """The last line that was printed."""
        return (self.output.splitlines() or ["nothing printed"])[-1]


class Unavailable(Exception):
    """This machine cannot be made to fail in the way that was asked for."""


class Stable:
    """Starts training processes. The process that it is in must have no threads."""

    def __init__(self, folder: Path) -> None:
        """Import what training needs; compile the shim into `folder`."""
        for name in (
            "torch._dynamo",
            "minigpt.cli.main",
            "minigpt.training.setup",
            "minigpt.training.loop",
            "minigpt.sampling.generate",
        ):
            importlib.import_module(name)
        folder.mkdir(parents=True, exist_ok=True)
        library = folder / "faults.so"
        if sys.platform != "linux" or not shutil.which("cc"):
            raise Unavailable("needs Linux and a C compiler (cc)")
        command = ["cc", "-O1", "-shared", "-fPIC", "-o", str(library), str(SHIM)]
        compiled = subprocess.run(command, capture_output=True, text=True, check=False)
        if compiled.returncode:
            raise Unavailable(f"cc cannot compile {SHIM.name} here: {compiled.stderr[-300:]}")
        self.shim = ctypes.CDLL(str(library))
        if len(os.listdir("/proc/self/task")) > 1:
            raise RuntimeError("a process with threads cannot be forked safely")
        probe = self.run(folder, ["--help"], Fault(folder))
        if probe.code:
            raise Unavailable(f"system calls cannot be filtered here: {probe.last_line}")

    def run(
        self,
        folder: Path,
        arguments: Sequence[str],
        fault: Fault | None = None,
        kill: Kill | None = None,
        confine: Callable[[], object] = lambda: None,
        output: Path | None = None,
    ) -> Ended:
        """Run `minigpt train` in `folder` to its end; `confine` is called in the child first."""
        board = Board.from_buffer(mmap.mmap(-1, ctypes.sizeof(Board)))
        board.forked = 1
        output = output or folder / "output.txt"
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            try:
                self._child(folder, arguments, fault, board, confine, output)
            finally:
                os._exit(99)
        status, killed = os.waitpid(child, os.WNOHANG if kill else 0), False
        if kill is not None:
            while not status[0] and board.entries[kill.phase] < kill.entry:
                time.sleep(0.0002)
                status = os.waitpid(child, os.WNOHANG)
            if not status[0]:
                time.sleep(kill.delay)
                status = os.waitpid(child, os.WNOHANG)
            if killed := not status[0]:
                os.kill(child, signal.SIGSTOP)  # so that what the board says is what the signal finds
                os.waitpid(child, os.WUNTRACED)
                board = Board.from_buffer_copy(board)
                os.kill(child, kill.signal)
                os.kill(child, signal.SIGCONT)
                status = os.waitpid(child, 0)
        return Ended(os.waitstatus_to_exitcode(status[1]), output.read_text(encoding="utf-8"), board, killed)

    def _child(
        self,
        folder: Path,
        arguments: Sequence[str],
        fault: Fault | None,
        board: Board,
        confine: Callable[[], object],
        output: Path,
    ) -> None:
        code: Any = 0
        try:
            os.chdir(folder)
            written = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            for stream in (1, 2):
                os.dup2(written, stream)
            sys.argv = ["minigpt", "train", *arguments]
            self._watch(board, fault is not None)
            if fault is not None:
                os.environ["PATH"] = ""  # a program started here would die of the filter, which has no handler there
                self._arm(fault)
            confine()
            import minigpt.cli.main

            minigpt.cli.main.main()
        except SystemExit as end:
            code = end.code or 0
        except BaseException:
            traceback.print_exc()
            code = 1
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 1)

    def _arm(self, fault: Fault) -> None:
        log = -1
        if fault.log is not None:
            log = 500  # out of the way of the files that training opens
            os.dup2(os.open(fault.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), log)
        root, then = os.fsencode(fault.root), fault.then.encode()
        if error := self.shim.arm(root, ctypes.c_long(fault.at), fault.half, fault.what, then, log):
            raise OSError(error, "cannot install the filter of system calls")

    def _watch(self, board: Board, marks: bool) -> None:
        """Have the training loop keep the board, and mark each save in the log; what it computes stays the same."""
        from minigpt.training.loop import Training

        def watched(method: Callable[..., Any], phase: int) -> Callable[..., Any]:
            @functools.wraps(method)
            def wrapper(training: Any, *arguments: Any) -> Any:
                if phase == SAVE and marks:
                    self.shim.mark(b"save %d" % training.state.step)
                result = board.note(phase, lambda: method(training, *arguments))
                board.step = training.state.step
                if phase == SAVE:
                    board.saved = training.state.step
                    if marks:
                        self.shim.mark(b"saved %d" % training.state.step)
                return result

            return wrapper

        for name, phase in {"loop": READY, "step": STEP, "evaluate": EVALUATION, "save": SAVE}.items():
            setattr(Training, name, watched(getattr(Training, name), phase))
        sleep = time.sleep  # a save that is tried again waits for seconds; not here
        setattr(time, "sleep", lambda seconds: sleep(min(seconds, 0.01)))  # noqa: B010 - for mypy


def run_own(folder: Path, arguments: Sequence[str], delay: float, number: signal.Signals) -> Ended:
    """Run `python -m minigpt train` as a process of its own; send it a signal after `delay` seconds."""
    command = [sys.executable, "-m", "minigpt", "train", *arguments]
    with open(folder / "output.txt", "w+", encoding="utf-8") as output:
        process, killed = subprocess.Popen(command, cwd=folder, stdout=output, stderr=output), False
        try:
            process.wait(delay)
        except subprocess.TimeoutExpired:
            process.send_signal(number)
            killed = True
        code = process.wait()
        output.seek(0)
        return Ended(code, output.read(), Board(), killed)


def write_text(folder: Path) -> Path:
    """Make a folder with a small text to train on; return it."""
    folder.mkdir(parents=True)
    draws, words = random.Random(0), ("alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta")
    text = " ".join(draws.choice(words) for _ in range(1500))
    (folder / "text.txt").write_text(text, encoding="utf-8")
    return folder


def copy(folder: Path, to: Path) -> Path:
    """Copy a folder with its runs to `to`, over what was there; return the copy."""
    shutil.rmtree(to, ignore_errors=True)
    return Path(shutil.copytree(folder, to))
