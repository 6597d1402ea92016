"""Sides measured in turn, each in a process of its own that waits while another works.

In processes of their own, because minigpt changes the one that it trains in (`kernels.keep_freed_memory`), and
because the most memory used is known for a whole process only. In turn, because the speed of a machine drifts.
This file does without torch, so that a side without it is measured without it.
"""

import os
import platform
import signal
import statistics
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from importlib import import_module
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from minigpt import __version__
from minigpt.errors import UserError

Say = Callable[[str], None]
"""Takes a line for people."""
Round = dict[str, float]
"""What one block of work came to: the keys of COLUMNS, and what shows that sides computed the same."""
Built = tuple[Callable[[], Round], dict[str, Any]]
"""What builds a side returns: the function that measures a block, and what there is to know of the side."""
Document = dict[str, Any]
"""What a benchmark found, as `--json` prints it."""

COLUMNS: dict[str, tuple[str, Callable[[float], str]]] = {
    "ms_per_step": ("ms/step", lambda value: f"{value:,.1f}"),
    "ms_per_character": ("ms/character", lambda value: f"{value:,.2f}"),
    "characters_per_second": ("characters/s", lambda value: f"{value:,.0f}"),
    "flops_per_second": ("GFLOP/s", lambda value: f"{value / 1e9:,.1f}"),
    "share_of_matmul": ("of matmul", lambda value: f"{value:.1%}"),
    "megabytes_per_second": ("MB/s", lambda value: f"{value:,.1f}"),
    "scan_megabytes_per_second": ("scan alone, MB/s", lambda value: f"{value:,.1f}"),
    "memory_bytes": ("peak memory", lambda value: f"{value / 1e6:,.0f} MB"),
}
"""What is summarised, its heading in a table, and how it is written there."""

PATIENCE = 3.0
"""Seconds that a side has to end by itself."""


@dataclass
class Side:
    """A process that measures when it is asked to."""

    name: str
    pipe: "Connection[Any, Any]"
    process: BaseProcess
    say: Say
    facts: dict[str, Any] = field(default_factory=dict)
    rounds: list[Round] = field(default_factory=list)

    def measure(self) -> None:
        """Let it do one block of its work, and wait for that."""
        with suppress(OSError):  # it has ended, and answer() says how
            self.pipe.send("measure")
        self.rounds.append(self.answer())

    def answer(self) -> dict[str, Any]:
        """Return what it answers, and pass on what it says until then. Raises what it raised."""
        while True:
            try:
                message = self.pipe.recv()
            except (EOFError, OSError) as error:
                self.process.join()
                how = f"exit code {self.process.exitcode}"
                if (code := self.process.exitcode or 0) < 0:
                    how = signal.Signals(-code).name
                raise UserError(f"the process of {self.name} ended ({how}), perhaps for want of memory") from error
            if isinstance(message, Exception):
                raise message
            if not isinstance(message, str):
                answer: dict[str, Any] = message
                return answer
            self.say(message)


@contextmanager
def side(name: str, build: str, *arguments: object, say: Say) -> Iterator[Side]:
    """Start a side, ready to measure: `build`, a function's full name, is called there with `arguments` and `say`."""
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, name, build, arguments), daemon=True)
    process.start()
    theirs.close()
    try:
        started = Side(name, ours, process, say)
        started.facts = started.answer()
        yield started
    finally:
        ours.close()  # which ends it once it waits; the compiler's helpers want to be told
        process.join(PATIENCE)
        process.kill()
        process.join()


def _serve(pipe: "Connection[Any, Any]", name: str, build: str, arguments: tuple[object, ...]) -> None:
    """Be a side: say what there is to know, then measure as often as asked, until nobody listens any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the asking process as well, which ends this one
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
            pipe.send(UserError(f"out of memory on the side of {name}: make the model or the batch smaller"))
        else:
            pipe.send(RuntimeError("".join(traceback.format_exception(error))))


def take_turns(sides: Sequence[Side], rounds: int, rate: str, **about: object) -> dict[str, Any]:
    """Measure the sides in turn and compare the `rate` of the first with that of each other one."""
    heading, written = COLUMNS[rate]
    for number in range(rounds):
        for one in sides[:: -1 if number % 2 else 1]:  # neither always works on a machine that the other heated up
            one.measure()
        rates = ", ".join(f"{one.name} {written(one.rounds[-1][rate])}" for one in sides)
        sides[0].say(f"round {number + 1} of {rounds}, {heading}: {rates}")
    first, *others = sides
    return {
        **about,
        "sides": {one.name: {**one.facts, "rounds": one.rounds, "summary": _summary(one.rounds)} for one in sides},
        "ratios": {other.name: _ratio(first.rounds, other.rounds, rate) for other in others},
    }


def _summary(rounds: Sequence[Round]) -> Round:
    """Return the median of each column over the rounds; of memory the most."""
    return {
        key: (max if key == "memory_bytes" else statistics.median)(one[key] for one in rounds)
        for key in COLUMNS
        if key in rounds[0]
    }


def _ratio(ours: Sequence[Round], others: Sequence[Round], rate: str) -> dict[str, Any]:
    ratios = [our[rate] / other[rate] for our, other in zip(ours, others, strict=True)]
    return {"rounds": ratios, "median": statistics.median(ratios), "min": min(ratios), "max": max(ratios)}


def document(benchmark: str, settings: dict[str, Any], comparisons: list[dict[str, Any]], device: str) -> Document:
    """Return what a benchmark found, with the facts about the machine that it depends on."""
    import torch

    from minigpt.model.device import processor

    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()
    return {
        "benchmark": benchmark,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": {
            "processor": processor(torch.device(device)),
            "cores": cores,
            "system": platform.platform(),
            "python": platform.python_version(),
            "torch": str(torch.__version__),
            "minigpt": __version__,
        },
        "settings": settings,
        "comparisons": comparisons,
    }


def tables(found: Document) -> Iterator[tuple[list[str], list[list[str]], list[str]]]:
    """Yield for each comparison a table, as its head and its rows, and the lines to print below it."""
    for comparison in found["comparisons"]:
        sides = comparison["sides"]
        columns = [key for key in COLUMNS if any(key in one["summary"] for one in sides.values())]
        head = [comparison["what"], *(COLUMNS[key][0] for key in columns)]
        rows = [
            [name, *(COLUMNS[key][1](one["summary"][key]) if key in one["summary"] else "" for key in columns)]
            for name, one in sides.items()
        ]
        first = next(iter(sides))
        lines = [
            f"{first} is {ratio['median']:.2f} x as fast as {other} (min {ratio['min']:.2f}, "
            f"max {ratio['max']:.2f}, rounds {len(ratio['rounds'])})"
            for other, ratio in comparison["ratios"].items()
        ]
        yield head, rows, lines + [f"{name}: {one['about']}" for name, one in sides.items()]
