"""Start processes that train together: ranks that are forked, or the agents of torchrun."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

from processes import Launcher, Progress, Result


def free_port() -> int:
    """Return a port that no program uses."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])


def is_open(port: int) -> bool:
    """Return whether a program listens at a port."""
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def wait_for(is_true: Callable[[], bool], seconds: float) -> bool:
    """Wait until a condition is true, but not longer than `seconds`. Return whether it is."""
    limit = time.monotonic() + seconds
    while not (result := is_true()) and time.monotonic() < limit:
        time.sleep(0.0005)
    return result


class Job:
    """Ranks of one run. Unlike with torchrun, nothing ends the others if one fails: they must notice the failure."""

    def __init__(self) -> None:
        self.children: list[tuple[int, Progress, Path]] = []
        """The id, the progress and the output of each rank."""
        self.codes: dict[int, int] = {}
        """The exit codes of the ranks that have ended."""
        self.hit: dict[int, Progress] = {}
        """The progress of ranks at their first signal."""
        self.phase: int | None = None
        """The phase of rank 0 at the first signal."""

    @classmethod
    @contextlib.contextmanager
    def start(cls, launcher: Launcher, folder: Path, words: Sequence[str], size: int) -> Iterator["Job"]:
        """Start `size` ranks. At the end of the block, kill and reap those that still run."""
        job, shared = cls(), {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(size)}
        try:
            for number in map(str, range(size)):
                variables, output = shared | {"RANK": number, "LOCAL_RANK": number}, folder / f"rank-{number}.txt"

                def setup(variables: dict[str, str] = variables) -> None:
                    os.environ.update(variables)

                job.children.append((*launcher.fork(folder, words, None, setup, output), output))
            yield job
        finally:
            for rank in job.left:
                os.kill(job.children[rank][0], signal.SIGKILL)
                os.waitpid(job.children[rank][0], 0)

    @property
    def left(self) -> list[int]:
        """The ranks that have not ended."""
        for rank, (child, _, _) in enumerate(self.children):
            if rank not in self.codes and (status := os.waitpid(child, os.WNOHANG))[0]:
                self.codes[rank] = os.waitstatus_to_exitcode(status[1])
        return [rank for rank in range(len(self.children)) if rank not in self.codes]

    def send(self, number: signal.Signals, ranks: Collection[int]) -> None:
        """Send a signal to ranks that have not ended."""
        for rank in set(ranks).intersection(self.left):
            self.phase = self.children[0][1].phase if self.phase is None else self.phase
            self.hit.setdefault(rank, Progress.from_buffer_copy(self.children[rank][1]))
            os.kill(self.children[rank][0], number)

    def wait(self, seconds: float, but: Collection[int] = ()) -> bool:
        """Wait until all ranks except those in `but` have ended. Return whether they have."""
        return wait_for(lambda: set(self.left) <= set(but), seconds)

    def result(self, rank: int) -> Result:
        """Return how a rank ended."""
        _, progress, output = self.children[rank]
        return Result(self.codes[rank], output.read_text(encoding="utf-8"), progress)


class Agent:
    """An agent of torchrun with one rank, as on one of two hosts."""

    def __init__(self, folder: Path, words: Sequence[str], port: int, output: Path) -> None:
        launch = "--nnodes 2 --nproc-per-node 1 --max-restarts 3 --rdzv-backend c10d --rdzv-id run --rdzv-endpoint"
        command = [sys.executable, "-m", "torch.distributed.run", *launch.split(), f"127.0.0.1:{port}"]
        command += ["-m", "minigpt", "train", *words]
        # Otherwise torchrun of PyTorch 2.13 does not tell a host that joins later where the store is.
        variables = os.environ | {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        with open(output, "a", encoding="utf-8") as stream:
            self.process = subprocess.Popen(command, cwd=folder, env=variables, stdout=stream, stderr=stream)

    def kill(self) -> None:
        """Kill the agent and its rank, as if their host lost power."""
        if self.process.poll() is not None:
            return
        tasks = Path(f"/proc/{self.process.pid}/task").glob("*/children")
        children = [int(child) for task in tasks for child in task.read_text(encoding="utf-8").split()]
        self.process.kill()
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        self.process.wait()
