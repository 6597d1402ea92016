"""Disks that fail training: each file operation of a start, a save and a resume killed or refused; full and read-only.

The faults at single operations come from tests/faults.c. Those of full disks, file sizes and permissions are real.
"""

import argparse
import ctypes
import errno
import json
import os
import re
import resource
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import endings
import powerloss
import victims
from endings import SHORTER, Report, Row, arguments, damage, difference, go_on, lost_steps, spread
from powerloss import Record
from victims import Fault, Kill, Stable

RESUME = ("--resume", "run")
SAVES = "runs/run/checkpoints"
CURVES = ("curves", "half a line", "TensorBoard")
"""What a disk that goes on refusing may cost a run that ends all the same."""
ERRORS = {  # the operations that an error can come from, and those that it goes on to refuse
    "ENOSPC": ("owtmrs", "owm"),
    "EDQUOT": ("owtmrs", "owm"),
    "EIO": ("owtmruds", "owtmruds"),
    "EROFS": ("owtmrud", "owtmrud"),
    "EACCES": ("omrud", "omrud"),
    "EFBIG": ("wt", "w"),
}


class Call(NamedTuple):
    """A file operation: which it is in its process, below a folder; its kind as powerloss.Record has it; its path."""

    number: int
    kind: str
    path: str


@dataclass(frozen=True)
class Place:
    """A stretch of a process's file operations, and how to get there."""

    kind: str
    """start, save, resume or log line."""
    folder: Path
    """Where the process starts from, copied for each try."""
    words: Sequence[str]
    root: str
    calls: list[Call]


class Faults:
    """Breaks single operations of training in copies of a folder."""

    def __init__(self, stable: Stable, work: Path, most: int | None, report: Report) -> None:
        """Find the operations of a start, of each save and of a resume. `most` limits the tries of each kind."""
        self.stable, self.work, self.most, self.report = stable, work, most, report
        self.new, folder = arguments(SHORTER), victims.write_text(work / "faults")
        self.expected, _ = endings.untouched(stable, victims.copy(folder, work / "untouched"), SHORTER)
        saves = [Place("save", folder, self.new, SAVES, calls) for calls in _saves(self._log(folder, self.new, SAVES))]
        half_way = victims.copy(folder, work / "half-way")
        third = Fault(half_way / SAVES, saves[2].calls[0].number, -signal.SIGKILL)
        stable.run(half_way, self.new, third)
        start, resume = (
            Place(kind, there, words, "runs", _calls(_until_curves(self._log(there, words, "runs"))))
            for kind, there, words in (("start", folder, self.new), ("resume", half_way, RESUME))
        )
        logs = [
            Place(f"log line in {name}", folder, self.new, root, _calls(self._log(folder, self.new, root), "wts"))
            for name, root in (("metrics.jsonl", "runs/run/metrics.jsonl"), ("event files", "runs/run/tensorboard"))
        ]
        self.saves, self.others, self.logs = saves, [start, resume], logs

    def _log(self, folder: Path, words: Sequence[str], root: str) -> list[Record]:
        """Train in a copy of `folder` and return the operations below `root`."""
        folder = victims.copy(folder, self.work / "logged")
        ended = self.stable.run(folder, words, Fault(folder / root, log=folder / "log.bin"))
        if ended.code:
            raise RuntimeError(f"training with a log of its file operations failed:\n{ended.output}")
        return powerloss.read_log(folder / "log.bin", folder)

    def try_all(self) -> None:
        """Kill at every operation and in every write; refuse those of a later save with each error."""
        tries = [(place, call) for place in (*self.saves, *self.others) for call in place.calls]
        for place, call in spread(tries, self.most):
            self.kill(place, call, half=False)
        for place, call in spread([(place, call) for place, call in tries if call.kind == "w"], self.most):
            self.kill(place, call, half=True)
        logs = [replace(log, calls=spread(log.calls, 6)) for log in self.logs]
        refusals = [
            (place, call, name, lasting)
            for place in (self.saves[-1], *self.others, *logs)
            for name, (kinds, _) in ERRORS.items()
            for call in place.calls
            if call.kind in kinds
            for lasting in ((False,) if place in self.others else (False, True))
        ]
        for place, call, name, lasting in spread(refusals, self.most and 3 * self.most):
            self.refuse(place, call, name, lasting)

    def kill(self, place: Place, call: Call, half: bool) -> None:
        """Kill a process before an operation or after the first half of a write, and go on."""
        folder = victims.copy(place.folder, self.work / "try")
        fault = Fault(folder / place.root, call.number, -signal.SIGKILL, half=half)
        ended = self.stable.run(folder, place.words, fault)
        problem = damage(folder / "runs/run", ended.board.saved)
        if ended.code != -signal.SIGKILL:
            problem = f"not reached: exit code {ended.code}: {ended.last_line}"
        lost = lost_steps(ended, folder / "runs/run")
        problem = problem or go_on(self.stable, folder, SHORTER, self.expected)
        row = f"SIGKILL {'within a write' if half else 'at an operation'} of a {place.kind}"
        self.report.add(row, problem, str(call), lost)

    def refuse(self, place: Place, call: Call, name: str, lasting: bool) -> None:
        """Refuse an operation once or from then on.

        Once: a save is tried again and a log line kept, so the run ends as if nothing had been. From then
        on, and at the start: it gives up in one line and can go on later; what only tidies up or logs may
        also fail without ending it.
        """
        folder = victims.copy(place.folder, self.work / "try")
        run, is_log = folder / "runs/run", place.kind.startswith("log")
        then, half = ERRORS[name][1] if lasting else "", call.kind == "w" and call.number % 2 == 0
        fault = Fault(folder / place.root, call.number, getattr(errno, name), then, half)
        ended = self.stable.run(folder, place.words, fault)
        problem, lost = damage(run, ended.board.saved), lost_steps(ended, run)
        ignore = CURVES if lasting and is_log else ()
        if ended.code == 0:
            problem = problem or difference(self.expected, run, ignore)
            if problem == "other leftovers":  # of a checkpoint that was to go: the next start removes them
                self.stable.run(folder, RESUME)
                problem = difference(self.expected, run, ignore)
        elif not lasting and (is_log or place.kind == "save"):
            problem = f"gave up: {ended.last_line}"
        else:
            problem = problem or ended.refusal or go_on(self.stable, folder, SHORTER, self.expected, ignore)
        row = f"{name} {'from then on' if lasting else 'once'} in a {place.kind}"
        self.report.add(row, problem, str(call), lost)


def _calls(log: Iterable[Record], kinds: str = "owtrumds") -> list[Call]:
    return [Call(record.call, record.kind, record.path) for record in log if record.kind in kinds]


def _saves(log: list[Record]) -> list[list[Call]]:
    """Return the operations of each save that the log marks."""
    begins = [i for i, record in enumerate(log) if record.kind == "M" and record.path.startswith("save ")]
    ends = [i for i, record in enumerate(log) if record.kind == "M" and record.path.startswith("saved ")]
    return [_calls(log[begin:end]) for begin, end in zip(begins, ends, strict=True)]


def _until_curves(log: Iterable[Record]) -> list[Record]:
    """Return what is done before training logs: all that a start or a resume has of its own."""
    records = list(log)
    first = next(i for i, record in enumerate(records) if record.kind == "w" and "tensorboard/" in record.path)
    return records[:first]


# --- full and read-only disks --------------------------------------------------------------------------


class Disks:
    """Resumes a run on disks where that cannot go well, and then where it can."""

    def __init__(self, stable: Stable, work: Path, most: int | None, report: Report) -> None:
        self.stable, self.work, self.most, self.report = stable, work, most, report
        self.half_way = victims.write_text(work / "disk")
        self.expected, _ = endings.untouched(stable, victims.copy(self.half_way, work / "untouched"), SHORTER)
        stable.run(self.half_way, arguments(SHORTER), kill=Kill(victims.SAVE, 3, 0, signal.SIGKILL))
        run = self.half_way / "runs/run"
        self.saved = run / f"checkpoints/step-{endings.newest(run):08d}"

    def resume(
        self,
        what: str,
        folder: Path,
        confine: Callable[[], object] = lambda: None,
        undo: Callable[[], object] = lambda: None,
        log: Path | None = None,
    ) -> None:
        """Resume with training confined; when it gave up well, undo what confined it and resume again."""
        run, output = folder / "runs/run", self.work / "output.txt"  # the last words need a disk with room
        before, fault = endings.newest(run), Fault(folder / "runs", log=log) if log else None
        ended = self.stable.run(folder, RESUME, fault, confine=confine, output=output)
        lost = lost_steps(ended, run)
        undo()
        problem = damage(run, max(before, ended.board.saved))
        if ended.code == 0 and difference(self.expected, run):  # only lines of the logs may be missing then
            problem = problem or difference(self.expected, run, CURVES)
        elif ended.code:
            problem = problem or ended.refusal or go_on(self.stable, folder, SHORTER, self.expected)
        if log:
            what = f"{what}, {_first_refused(powerloss.read_log(log, folder))}"
        self.report.add(what, problem, "resume", lost)

    def try_all(self) -> None:
        """Limit file sizes and take permissions away; then fill a small disk, where one may be mounted."""
        for name in ("model.safetensors", "optimizer.safetensors"):
            size = (self.saved / name).stat().st_size - 1
            limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (size, size))
            self.resume(f"limit on file sizes, below {name}", victims.copy(self.half_way, self.work / "try"), limit)
        for name in ("runs", "runs/run", SAVES):
            folder = victims.copy(self.half_way, self.work / "try")
            (folder / name).chmod(0o555)
            undo = partial((folder / name).chmod, 0o755)
            self.resume(f"no permission to write in {name}", folder, _drop_privileges, undo)
        results, holder = self.work / "small.json", os.fork()
        if holder == 0:  # the disk lives as long as this process and those that it starts
            try:
                self.report = Report()
                self._on_small_disk(self.work / "small")
                rows = [asdict(row) for row in self.report.rows.values()]
                results.write_text(json.dumps(rows), encoding="utf-8")
                os._exit(0)
            except BaseException as error:
                print(f"on the small disk: {error!r}", file=sys.stderr, flush=True)
            finally:
                os._exit(1)
        if os.waitpid(holder, 0)[1]:
            self.report.add("full disk", "could not be tried", "see above")
            return
        for row in json.loads(results.read_text(encoding="utf-8")):
            self.report.rows[row["fault"]] = Row(**row)

    def _on_small_disk(self, small: Path) -> None:
        """Leave so many pages free, from none to all that a save needs; then make the disk read-only."""
        try:
            _mount(small, 4 << 20)
        except OSError as error:
            print(f"full and read-only disks are not tried: none can be mounted here: {error}", file=sys.stderr)
            return
        page, ballast, log = os.statvfs(small).f_frsize, small / "ballast", self.work / "small.log"
        needed = 6 + sum(-(-path.stat().st_size // page) for path in self.saved.iterdir())
        for pages in spread(range(needed), self.most):
            folder = victims.copy(self.half_way, small / "try")
            ballast.write_bytes(bytes((os.statvfs(small).f_bavail - pages) * page))
            log.unlink(missing_ok=True)
            self.resume("full disk", folder, undo=ballast.unlink, log=log)
        folder = victims.copy(self.half_way, small / "try")
        _remount(small, read_only=True)
        self.resume("read-only disk", folder, undo=partial(_remount, small, read_only=False))


def _first_refused(log: Iterable[Record]) -> str:
    """Return what was refused first for want of space."""
    full = (record for record in log if record.kind == "E" and record.number == errno.ENOSPC)
    for record in full:
        name = Path(record.path).name
        name = "*.safetensors" if name.startswith(".tmp") else re.sub(r"^\.(.+)\.\d+$", r"\1", name)
        return f"first refused: {'an event file' if name.startswith('events') else name}"
    return "but room enough"


def _drop_privileges() -> None:
    """Have permissions bind root too."""
    header, none = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    if os.geteuid() == 0:
        _call("capset", header, none)


def _mount(folder: Path, size: int) -> None:
    """Mount a disk of `size` bytes on a new folder, seen by this process and its children only. Raises OSError."""
    new_user, new_mounts, private = 0x10000000, 0x00020000, (1 << 14) | (1 << 18)
    user, group = os.getuid(), os.getgid()
    _call("unshare", new_mounts | (new_user if user else 0))
    if user:
        for name, content in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
            Path("/proc/self", name).write_text(content)
    folder.mkdir()
    _call("mount", None, b"/", None, private, None)
    _call("mount", b"none", bytes(folder), b"tmpfs", 0, b"size=%d" % size)


def _remount(folder: Path, read_only: bool) -> None:
    remount = 1 << 5
    _call("mount", None, bytes(folder), None, remount | read_only, None)


def _call(function: str, *arguments: Any) -> None:
    """Call a function of the C library. Raises OSError."""
    if getattr(ctypes.CDLL(None, use_errno=True), function)(*arguments):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def try_faults(stable: Stable, work: Path, options: argparse.Namespace, report: Report) -> None:
    """Break single operations."""
    Faults(stable, work, options.faults, report).try_all()


def try_disks(stable: Stable, work: Path, options: argparse.Namespace, report: Report) -> None:
    """Break whole disks."""
    Disks(stable, work, options.faults, report).try_all()
