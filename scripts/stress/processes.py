"""Start training processes that can be killed and whose disk can fail.

A `Launcher` has imported torch. It forks a child for each process, which calls `minigpt.cli.main` with the same
arguments as a process of its own. This saves the seconds that imports take.
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

SOURCE = Path(__file__).with_name("faults.c")
PHASES = ("while starting", "before the first step", "in a step", "in an evaluation", "in a save", "at the end")
START, READY, STEP, EVALUATION, SAVE, END = range(len(PHASES))
WATCHED = {"loop": READY, "step": STEP, "evaluate": EVALUATION, "save": SAVE}
"""The methods of `Training` that begin a phase."""


class Progress(ctypes.Structure):
    """How far a child is, in memory that it shares with its parent."""

    phase: int
    step: int
    saved: int
    """The step of the last save that has returned; -1 if none has."""
    entries: Any
    """How often each phase has begun."""
    nanoseconds: Any
    """How long each phase has taken in total."""
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("phase", "step", "saved")),
        *((name, ctypes.c_int64 * len(PHASES)) for name in ("entries", "nanoseconds")),
    )

    def mean_seconds(self, phase: int) -> float:
        """Return how long a phase takes on average."""
        return float(self.nanoseconds[phase] / 1e9 / max(1, self.entries[phase]))

    def call(self, phase: int, function: Callable[[], Any]) -> Any:
        """Call a function as a phase, then return to the phase before. The time between two steps counts as a step."""
        before, began = self.phase, time.perf_counter_ns()
        self.phase = phase
        self.entries[phase] += 1
        result = function()
        self.nanoseconds[phase] += time.perf_counter_ns() - began
        self.phase = {READY: END, STEP: STEP}.get(phase, before)
        return result


@dataclass(frozen=True)
class Fault:
    """A fault at one file operation below a folder. `faults.c` counts the operations and makes the fault."""

    root: Path
    call: int = 0
    """Number of the operation that fails, from 1; 0 for none."""
    error: int = 0
    """The errno of the operation, or the negative number of a signal that kills the process instead."""
    lasting: str = ""
    """Kinds of operations that fail from then on, too."""
    half: bool = False
    """Do half of a write before the fault."""
    log: Path | None = None
    """A file for the log of all operations below `root`."""


class Event(NamedTuple):
    """Something that happens to a process, `delay` seconds after a phase has begun for the `entry`-th time."""

    phase: int
    entry: int
    delay: float
    act: Callable[[int], object]
    """Called with the id of the process, which is stopped."""


def send(*numbers: signal.Signals, gap: float = 0.0) -> Callable[[int], None]:
    """Return a function that sends signals to a process, `gap` seconds apart."""

    def act(process: int) -> None:
        for i, number in enumerate(numbers):
            time.sleep(gap if i else 0)
            os.kill(process, number)
            os.kill(process, signal.SIGCONT)

    return act


@dataclass(frozen=True)
class Result:
    """How a process ended."""

    code: int
    """The exit code, or the negative number of a signal."""
    output: str
    progress: Progress
    """The progress at the event, or at the end."""
    was_hit: bool = False
    """False without an event, or if the process ended before."""

    @property
    def last_line(self) -> str:
        """The last line of the output."""
        return (self.output.splitlines() or ["no output"])[-1]

    def problem_with_error(self) -> str | None:
        """Return what is wrong with the way the process gave up: it must print one line, with exit code 1."""
        if self.code != 1:
            return f"exit code {self.code} instead of 1: {self.last_line}"
        if "Traceback" in self.output:
            return f"traceback: {self.last_line}"
        lines = sum(line.startswith("minigpt: ") for line in self.output.splitlines())
        return None if lines == 1 else f"{lines} lines say why it ended"


class UnavailableError(Exception):
    """This machine cannot make the faults."""


class Launcher:
    """Start training processes. The process of the launcher must not have threads, because it forks."""

    def __init__(self, folder: Path) -> None:
        """Import what training needs, and compile `faults.c` into `folder`."""
        for name in ("torch._dynamo", "minigpt.cli.app", "minigpt.training.loop", "minigpt.training.setup"):
            importlib.import_module(name)
        folder.mkdir(parents=True, exist_ok=True)
        library = folder / "faults.so"
        if sys.platform != "linux" or not shutil.which("cc"):
            raise UnavailableError("needs a C compiler (cc) on Linux")
        command = ["cc", "-O1", "-shared", "-fPIC", "-o", str(library), str(SOURCE)]
        compiled = subprocess.run(command, capture_output=True, text=True, check=False)
        if compiled.returncode:
            raise UnavailableError(f"cc cannot compile {SOURCE.name}: {compiled.stderr[-300:]}")
        self.library = ctypes.CDLL(str(library))
        if len(os.listdir("/proc/self/task")) > 1:
            raise RuntimeError("cannot fork a process that has threads")
        if self.run(folder, ["--help"], Fault(folder)).code:
            raise UnavailableError("this system does not allow filters of system calls (seccomp)")

    def run(
        self,
        folder: Path,
        arguments: Sequence[str],
        fault: Fault | None = None,
        event: Event | None = None,
        setup: Callable[[], object] = lambda: None,
        output: Path | None = None,
    ) -> Result:
        """Run `minigpt train` in `folder` until it ends. The child calls `setup` first."""
        output = output or folder / "output.txt"
        child, progress = self.fork(folder, arguments, fault, setup, output)
        status, was_hit = os.waitpid(child, os.WNOHANG if event else 0), False
        if event is not None:
            while not status[0] and progress.entries[event.phase] < event.entry:
                time.sleep(0.0002)
                status = os.waitpid(child, os.WNOHANG)
            if not status[0]:
                time.sleep(event.delay)
                status = os.waitpid(child, os.WNOHANG)
            if was_hit := not status[0]:
                os.kill(child, signal.SIGSTOP)  # freezes the progress until the event
                status = os.waitpid(child, os.WUNTRACED)
                if was_hit := os.WIFSTOPPED(status[1]):
                    progress = Progress.from_buffer_copy(progress)
                    event.act(child)
                    os.kill(child, signal.SIGCONT)
                    status = os.waitpid(child, 0)
        return Result(os.waitstatus_to_exitcode(status[1]), output.read_text(encoding="utf-8"), progress, was_hit)

    def fork(
        self,
        folder: Path,
        arguments: Sequence[str],
        fault: Fault | None,
        setup: Callable[[], object],
        output: Path,
    ) -> tuple[int, Progress]:
        """Start `minigpt train`. Return the id of its process, which the caller must reap, and its progress."""
        progress = Progress.from_buffer(mmap.mmap(-1, ctypes.sizeof(Progress)))
        progress.saved = -1
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            try:
                self._run_child(folder, arguments, fault, progress, setup, output)
            except SystemExit as end:  # the second of two signals, while the first one ended the command
                os._exit(int(end.code or 0))
            finally:
                os._exit(99)
        return child, progress

    def _run_child(
        self,
        folder: Path,
        arguments: Sequence[str],
        fault: Fault | None,
        progress: Progress,
        setup: Callable[[], object],
        output: Path,
    ) -> None:
        code: Any = 0
        try:
            os.chdir(folder)
            for number in (signal.SIGHUP, signal.SIGINT):  # nohup, or a shell in the background, ignores them
                signal.signal(number, signal.SIG_DFL)
            file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            for stream in (1, 2):
                os.dup2(file, stream)
            sys.argv = ["minigpt", "train", *arguments]
            self._watch(progress, has_log=fault is not None)
            if fault is not None:
                os.environ["PATH"] = ""  # the filter would kill a program that the child starts
                self._arm(fault)
            setup()
            importlib.import_module("minigpt.cli.main").main()
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
            log = 500  # higher than any file that training opens
            os.dup2(os.open(fault.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), log)
        root, lasting = os.fsencode(fault.root), fault.lasting.encode()
        if error := self.library.arm(root, ctypes.c_long(fault.call), fault.half, fault.error, lasting, log):
            raise OSError(error, "cannot install the filter of system calls")

    def _watch(self, progress: Progress, has_log: bool) -> None:
        """Make `Training` report its progress and mark each save in the log of file operations."""
        from minigpt.training.loop import Training

        def watch(method: Callable[..., Any], phase: int) -> Callable[..., Any]:
            @functools.wraps(method)
            def wrapper(training: Any, *arguments: Any) -> Any:
                if phase == SAVE and has_log:
                    self.library.mark(b"save %d" % training.state.step)
                result = progress.call(phase, lambda: method(training, *arguments))
                progress.step = training.state.step
                if phase == SAVE:
                    progress.saved = training.state.step
                    if has_log:
                        self.library.mark(b"saved %d" % training.state.step)
                return result

            return wrapper

        for name, phase in WATCHED.items():
            setattr(Training, name, watch(getattr(Training, name), phase))
        sleep = time.sleep  # training waits seconds before it retries a save; these processes do not
        setattr(time, "sleep", lambda seconds: sleep(min(seconds, 0.01)))  # noqa: B010 - for mypy


def run_separately(folder: Path, arguments: Sequence[str], delay: float, number: signal.Signals) -> Result:
    """Run `python -m minigpt train` without forking, and send it a signal after `delay` seconds."""
    command = [sys.executable, "-m", "minigpt", "train", *arguments]
    with open(folder / "output.txt", "w+", encoding="utf-8") as output:
        process, was_hit = subprocess.Popen(command, cwd=folder, stdout=output, stderr=output), False
        try:
            process.wait(delay)
        except subprocess.TimeoutExpired:
            process.send_signal(number)
            was_hit = True
        code = process.wait()
        output.seek(0)
        return Result(code, output.read(), Progress(saved=-1), was_hit)


def write_text(folder: Path) -> Path:
    """Make a folder with a small text to train on, and return it."""
    folder.mkdir(parents=True)
    random_words = random.Random(0).choices(("alpha", "beta", "gamma", "delta", "epsilon", "zeta"), k=1500)
    (folder / "text.txt").write_text(" ".join(random_words), encoding="utf-8")
    return folder


def copy(folder: Path, destination: Path) -> Path:
    """Copy a folder in place of `destination`, and return the copy."""
    shutil.rmtree(destination, ignore_errors=True)
    return Path(shutil.copytree(folder, destination))
