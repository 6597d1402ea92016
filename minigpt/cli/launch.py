"""`minigpt train --processes N`: start this command in several processes, the workers, and pass signals on to them.

The standard input of a worker (worker.py) is a pipe from the launcher, which sends the numbers of signals. The pipe
closes when the launcher ends in any way, so no worker outlives it.
"""

import math
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, suppress

from minigpt.cli.output import notice
from minigpt.training.signals import Interrupts, say_stopped
from minigpt.world import available_cores, python_command

PATIENCE = 10.0
"""Seconds that the other workers have to report it and end, after one has failed."""


def launch(processes: int) -> int:
    """Run this process's command line in `processes` workers. Return the exit code of the first that fails."""
    cores = available_cores()
    if processes > cores:
        notice(f"{processes} processes on {cores} core{'s' * (cores > 1)} take turns: fewer would be faster")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    size, threads = str(processes), str(max(1, cores // processes))
    defaults = {"OMP_NUM_THREADS": threads, "TORCH_CPP_LOG_LEVEL": "ERROR"}
    shared = {"WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    shared["TORCHELASTIC_USE_AGENT_STORE"] = "False"  # torchrun may have started the launcher
    with ExitStack() as stack, Interrupts(is_silent=True) as interrupts:
        workers = [
            stack.enter_context(
                subprocess.Popen(
                    [*python_command("minigpt.cli.worker"), *sys.argv[1:]],
                    env={**defaults, **os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                    stdin=subprocess.PIPE,
                    bufsize=0,
                    start_new_session=True,  # a terminal sends Ctrl-C to its session
                    creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),  # the same on Windows
                )
            )
            for rank in range(processes)
        ]
        return _wait(workers, interrupts)


def _wait(workers: "list[subprocess.Popen[bytes]]", interrupts: Interrupts) -> int:
    """Pass on the first signal, and wait until all workers have ended. Return the exit code."""
    code, failed, is_told = 0, math.inf, False
    while None in (codes := [worker.poll() for worker in workers]):
        if any(codes) and not code:
            code, failed = next(filter(None, codes)), time.monotonic()
        number = interrupts.signal
        for worker in workers:
            if number and not is_told:
                with suppress(OSError):  # it has ended
                    worker.stdin.write(bytes([number]))  # type: ignore[union-attr]
            if time.monotonic() > failed + PATIENCE:
                worker.kill()
        is_told = number is not None
        time.sleep(0.05)
    code = code or next(filter(None, codes), 0)
    if code == -signal.SIGINT:  # while it waited for the others
        say_stopped()
    return code if code >= 0 else 128 - code
