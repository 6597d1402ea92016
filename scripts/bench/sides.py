"""Measure several implementations, each in its own process, in interleaved rounds.

Each side of a comparison has its own process because minigpt changes process-wide settings for training, and because
peak memory can only be measured for a whole process. Rounds are interleaved because the speed of a machine drifts over
time. This module does not import torch, because a side without torch must be measured without it.
"""

import signal
import statistics
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib import import_module
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from bench.report import COLUMNS, Round, summarize
from minigpt.errors import InsufficientMemoryError, UserError

Log = Callable[[str], None]
"""Function that prints a line for the user."""
Workload = tuple[Callable[[], Round], dict[str, Any]]
"""A function that measures one round, and facts about the side. The fact `about` describes it."""

EXIT_TIMEOUT = 3.0
"""Seconds to wait for the process of a side to exit before killing it."""


@dataclass
class Side:
    """A process that measures one round on request."""

    name: str
    pipe: "Connection[Any, Any]"
    process: BaseProcess
    log: Log
    facts: dict[str, Any] = field(default_factory=dict)
    rounds: list[Round] = field(default_factory=list)

    def measure(self) -> None:
        """Measure one round."""
        with suppress(OSError):  # the process has exited; receive() reports it
            self.pipe.send("measure")
        self.rounds.append(self.receive())

    def receive(self) -> dict[str, Any]:
        """Log the messages of the process until its next result, and return the result. Raise its exception, if any."""
        while True:
            try:
                message = self.pipe.recv()
            except (EOFError, OSError) as error:
                self.process.join()
                code = self.process.exitcode or 0
                how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
                raise UserError(f"the process of {self.name} exited ({how}), perhaps out of memory") from error
            if isinstance(message, Exception):
                raise message
            if not isinstance(message, str):
                result: dict[str, Any] = message
                return result
            self.log(message)


@contextmanager
def start_side(name: str, build: str, *arguments: object, log: Log) -> Iterator[Side]:
    """Start a process for one side, and stop it after the `with` block.

    Args:
        name: The name of the side in results and messages.
        build: The full name of a function that returns the Workload. The process calls it with `arguments` and `log`.
        arguments: Picklable arguments.
        log: Receives the messages of the process.
    """
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, name, build, arguments), daemon=True)
    process.start()
    theirs.close()
    try:
        side = Side(name, ours, process, log)
        side.facts = side.receive()
        yield side
    finally:
        ours.close()  # lets a waiting process stop the workers of torch's compiler and exit
        process.join(EXIT_TIMEOUT)
        process.kill()
        process.join()


def _serve(pipe: "Connection[Any, Any]", name: str, build: str, arguments: tuple[object, ...]) -> None:
    """Send the facts about the side, then measure a round per request until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C also reaches the parent, which stops this process
    try:
        module, _, function = build.rpartition(".")
        measure, facts = getattr(import_module(module), function)(*arguments, pipe.send)
        pipe.send(facts)
        while True:
            pipe.recv()
            pipe.send(measure())
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return
    except (UserError, OSError) as error:
        pipe.send(error)
    except Exception as error:
        from minigpt.model.memory import as_memory_error

        if as_memory_error(error):
            pipe.send(InsufficientMemoryError(f"out of memory in {name}: use a smaller model or batch"))
        else:
            pipe.send(RuntimeError("".join(traceback.format_exception(error))))


def measure_interleaved(sides: Sequence[Side], rounds: int, rate: str, **about: object) -> dict[str, Any]:
    """Measure all sides in each round, and compare the first side with each of the others.

    Args:
        sides: The sides; the first is minigpt.
        rounds: The number of rounds.
        rate: The column to compare.
        about: Additional entries for the result. `what` is its title.
    """
    heading, format_value = COLUMNS[rate]
    for number in range(rounds):
        for side in sides[:: -1 if number % 2 else 1]:  # alternate, because the first side heats up the machine
            side.measure()
        rates = ", ".join(f"{side.name} {format_value(side.rounds[-1][rate])}" for side in sides)
        sides[0].log(f"round {number + 1} of {rounds}, {heading}: {rates}")
    first, *others = sides
    return {
        **about,
        "sides": {
            side.name: {**side.facts, "rounds": side.rounds, "summary": summarize(side.rounds)} for side in sides
        },
        "ratios": {other.name: _ratio(first.rounds, other.rounds, rate) for other in others},
    }


def _ratio(first: Sequence[Round], other: Sequence[Round], rate: str) -> dict[str, Any]:
    ratios = [a[rate] / b[rate] for a, b in zip(first, other, strict=True)]
    return {"rounds": ratios, "median": statistics.median(ratios), "min": min(ratios), "max": max(ratios)}
