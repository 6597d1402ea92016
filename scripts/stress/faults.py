"""Make single file operations fail while training starts, saves, resumes or logs.

`faults.c` makes the faults: it counts the operations below a folder and kills the process or returns an error at one.
"""

import errno
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import powerloss
import processes
from checks import (
    SHORT,
    Report,
    arguments,
    compare,
    find_damage,
    lost_steps,
    resume_and_compare,
    spread,
    train_reference,
)
from powerloss import Record
from processes import Fault, Launcher

RESUME = ("--resume", "run")
CHECKPOINTS = "runs/run/checkpoints"
METRICS = ("metrics", "broken lines")
"""What a run may lose if metrics.jsonl cannot be written."""
ERRORS = {  # the kinds of operations at which each error can occur, and those that fail with it from then on
    "ENOSPC": ("owtmrs", "owm"),
    "EDQUOT": ("owtmrs", "owm"),
    "EIO": ("owtmruds", "owtmruds"),
    "EROFS": ("owtmrud", "owtmrud"),
    "EACCES": ("omrud", "omrud"),
    "EFBIG": ("wt", "w"),
}


class Call(NamedTuple):
    """A file operation: its number below a folder, its kind as in powerloss.Record, and its path."""

    number: int
    kind: str
    path: str


@dataclass(frozen=True)
class Section:
    """A part of a process, and the file operations in it."""

    kind: str
    """start, save, resume or metrics line."""
    folder: Path
    """The folder before the process. Each trial copies it."""
    arguments: Sequence[str]
    root: str
    calls: list[Call]


class Faults:
    """Trials with a fault at a single file operation, each in a copy of a folder."""

    def __init__(self, launcher: Launcher, work: Path, most: int | None, report: Report) -> None:
        """Find the operations of a start, each save, a resume and metrics. `most` limits the trials of each kind."""
        self.launcher, self.work, self.most, self.report = launcher, work, most, report
        new, folder = arguments(SHORT), processes.write_text(work / "faults")
        self.expected, _ = train_reference(launcher, processes.copy(folder, work / "reference"), SHORT)
        calls_by_save = _calls_by_save(self._log(folder, new, CHECKPOINTS))
        self.saves = [Section("save", folder, new, CHECKPOINTS, calls) for calls in calls_by_save]
        halfway = processes.copy(folder, work / "halfway")
        launcher.run(halfway, new, Fault(halfway / CHECKPOINTS, calls_by_save[2][0].number, -signal.SIGKILL))
        self.others = [
            Section(kind, start, words, "runs", _calls(_until_metrics(self._log(start, words, "runs"))))
            for kind, start, words in (("start", folder, new), ("resume", halfway, RESUME))
        ]
        root = "runs/run/metrics.jsonl"
        self.metrics = Section("metrics line", folder, new, root, _calls(self._log(folder, new, root), "ws"))

    def _log(self, folder: Path, words: Sequence[str], root: str) -> list[Record]:
        """Train in a copy of `folder` and return the operations below `root`."""
        folder = processes.copy(folder, self.work / "logged")
        result = self.launcher.run(folder, words, Fault(folder / root, log=folder / "log.bin"))
        if result.code:
            raise RuntimeError(f"training with a log of its file operations failed:\n{result.output}")
        return powerloss.read_log(folder / "log.bin", folder)

    def try_all(self) -> None:
        """Kill at each operation and in each write. Return each error from operations outside the earlier saves."""
        trials = [(section, call) for section in (*self.saves, *self.others) for call in section.calls]
        for section, call in spread(trials, self.most):
            self.kill(section, call, half=False)
        for section, call in spread([(section, call) for section, call in trials if call.kind == "w"], self.most):
            self.kill(section, call, half=True)
        metrics = replace(self.metrics, calls=spread(self.metrics.calls, 6))
        failures = [
            (section, call, name, lasting)
            for section in (self.saves[-1], *self.others, metrics)
            for name, (kinds, _) in ERRORS.items()
            for call in section.calls
            if call.kind in kinds
            for lasting in ((False,) if section in self.others else (False, True))
        ]
        for section, call, name, lasting in spread(failures, self.most and 3 * self.most):
            self.fail(section, call, name, lasting)

    def kill(self, section: Section, call: Call, half: bool) -> None:
        """Kill a process before an operation, or after the first half of a write. Then resume."""
        folder = processes.copy(section.folder, self.work / "trial")
        fault = Fault(folder / section.root, call.number, -signal.SIGKILL, half=half)
        result = self.launcher.run(folder, section.arguments, fault)
        problem = find_damage(folder / "runs/run", result.progress.saved)
        if result.code != -signal.SIGKILL:
            problem = f"not reached: exit code {result.code}: {result.last_line}"
        lost = lost_steps(result, folder / "runs/run")
        problem = problem or resume_and_compare(self.launcher, folder, SHORT, self.expected)
        row = f"SIGKILL {'within a write' if half else 'at an operation'} of a {section.kind}"
        self.report.add(row, problem, str(call), lost)

    def fail(self, section: Section, call: Call, name: str, lasting: bool) -> None:
        """Let an operation fail, once or from then on.

        After one error in a save, training must end as if nothing had happened: it repeats the save. After errors in
        metrics lines, metrics may be missing. After lasting errors, or one in a start or a resume, it may give up.
        """
        folder = processes.copy(section.folder, self.work / "trial")
        run, is_metrics = folder / "runs/run", section is not self.saves[-1] and section not in self.others
        kinds, half = ERRORS[name][1] if lasting else "", call.kind == "w" and call.number % 2 == 0
        fault = Fault(folder / section.root, call.number, getattr(errno, name), kinds, half)
        result = self.launcher.run(folder, section.arguments, fault)
        problem, lost = find_damage(run, result.progress.saved), lost_steps(result, run)
        ignore = METRICS if is_metrics else ()
        if result.code == 0:
            problem = problem or compare(self.expected, run, ignore)
            if problem == "different hidden files":  # the next start removes what could not be deleted
                self.launcher.run(folder, RESUME)
                problem = compare(self.expected, run, ignore)
        elif not lasting and (is_metrics or section.kind == "save"):
            problem = f"gave up: {result.last_line}"
        else:
            problem = problem or result.problem_with_error()
            problem = problem or resume_and_compare(self.launcher, folder, SHORT, self.expected, ignore)
        row = f"{name} {'from then on' if lasting else 'once'} in a {section.kind}"
        self.report.add(row, problem, str(call), lost)


def _calls(log: Iterable[Record], kinds: str = "owtrumds") -> list[Call]:
    return [Call(record.call, record.kind, record.path) for record in log if record.kind in kinds]


def _calls_by_save(log: list[Record]) -> list[list[Call]]:
    """Return the operations of each save that the log marks."""
    begins = [i for i, record in enumerate(log) if record.kind == "M" and record.path.startswith("save ")]
    ends = [i for i, record in enumerate(log) if record.kind == "M" and record.path.startswith("saved ")]
    return [_calls(log[begin:end]) for begin, end in zip(begins, ends, strict=True)]


def _until_metrics(log: Iterable[Record]) -> list[Record]:
    """Return the operations before the first metrics line: those that only a start or a resume makes."""
    records = list(log)
    first = next(i for i, record in enumerate(records) if record.kind == "w" and record.path.endswith("metrics.jsonl"))
    return records[:first]
