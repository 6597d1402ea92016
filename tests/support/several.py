"""Several processes that train together in a test, as torchrun would start them."""

import contextlib
import multiprocessing
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from command_line import HANG

from minigpt.cli.main import main

if sys.platform != "win32":  # whose tests import this module, but skip all that start processes
    import resource

    CONTEXT = multiprocessing.get_context("forkserver")
    CONTEXT.set_forkserver_preload(["minigpt.cli.app", "minigpt.training.loop", "several"])


@dataclass(frozen=True)
class Rank:
    """How one of several processes ended."""

    code: int
    """The exit code, or the negative number of a signal."""
    err: str

    @property
    def errors(self) -> list[str]:
        """The lines of errors. Fails if there is a traceback."""
        assert "Traceback" not in self.err, self.err
        return [line for line in self.err.splitlines() if line.startswith("minigpt: ")]


class Job:
    """The processes of `minigpt ARGUMENTS` in a folder.

    Args:
        folder: The current folder of the processes.
        arguments: Those of the command line.
        size: The number of processes.
        setup: Called in process `rank` before the command line, as `setup(rank, argument)`.
        argument: Any picklable value.
    """

    def __init__(
        self,
        folder: Path,
        *arguments: str,
        size: int = 2,
        setup: Callable[[int, Any], None] | None = None,
        argument: Any = None,
    ) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.outputs = [folder / f"err-{rank}.txt" for rank in range(size)]
        shared = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
        shared["MINIGPT_CACHE"] = os.environ["MINIGPT_CACHE"]
        self.processes = []
        for rank, output in enumerate(self.outputs):
            own = {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} if size > 1 else shared
            process = CONTEXT.Process(target=_run, args=(folder, arguments, own, output, setup, rank, argument))
            process.start()
            self.processes.append(process)

    def wait(self) -> list[Rank]:
        """Wait for all processes, and return how they ended."""
        for process in self.processes:
            process.join(HANG)
            if process.exitcode is None:
                for each in self.processes:
                    each.kill()
                raise TimeoutError("\n".join(path.read_text() for path in self.outputs if path.exists()))
        return [
            Rank(p.exitcode, out.read_text(encoding="utf-8"))
            for p, out in zip(self.processes, self.outputs, strict=True)
        ]

    def kill(self, rank: int, number: signal.Signals) -> None:
        """Send a signal to a process."""
        pid = self.processes[rank].pid
        assert pid is not None
        os.kill(pid, number)


def together(folder: Path, *arguments: str, size: int = 2, **more: Any) -> list[Rank]:
    """Run `minigpt ARGUMENTS` in several processes, and return how each ended."""
    return Job(folder, *arguments, size=size, **more).wait()


def _run(
    folder: Path,
    arguments: tuple[str, ...],
    environment: dict[str, str],
    output: Path,
    setup: Callable[[int, Any], None] | None,
    rank: int,
    argument: Any,
) -> None:
    os.environ.update(environment)
    os.chdir(folder)
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(file, stream)
    sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
    sys.argv = ["minigpt", *arguments]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    code: Any = 1
    try:
        if setup:
            setup(rank, argument)
        main()
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        traceback.print_exc()
    with contextlib.suppress(BaseException):
        sys.stderr.flush()
    os._exit(code)


# --- what a process can do to itself -----------------------------------------------------------------


def at_step(rank: int, argument: tuple[int, int, str]) -> None:
    """In process `argument[0]`, do something before step `argument[1]`: die, hang, or send itself a signal."""
    import minigpt.training.learner as learner

    victim, step, what = argument
    batch_at = learner.batch_at

    def disturbed(*arguments: Any, **named: Any) -> Any:
        if rank == victim and arguments[4:5] == (step,):
            os.kill(os.getpid(), getattr(signal, what))
        return batch_at(*arguments, **named)

    learner.batch_at = disturbed


def own_steps(rank: int, argument: None) -> None:
    """Let the dial choose 5 steps in the main process, and more in the others."""
    import minigpt.training.dial as dial

    dial.steps_within = lambda *given: 5 + rank


def no_weights(rank: int, victim: int) -> None:
    """Let process `victim` fail if it reads weights."""
    import minigpt.storage.checkpoint as checkpoint

    if rank == victim:
        del checkpoint._read_arrays


def file_limit(rank: int, argument: tuple[int, int]) -> None:
    """In process `argument[0]`, make files of more than `argument[1]` bytes fail, as on a full disk."""
    victim, size = argument
    if rank == victim:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        import time

        sleep = time.sleep
        time.sleep = lambda seconds: sleep(min(seconds, 0.05))
    else:
        import minigpt.storage.checkpoint as checkpoint

        checkpoint.RETRY_PAUSES = (0.05, 0.05)


def other_argument(rank: int, argument: tuple[int, list[str]]) -> None:
    """Give process `argument[0]` more arguments than the others."""
    if rank == argument[0]:
        sys.argv += argument[1]
