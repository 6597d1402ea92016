"""Resume training on disks that are full, limited, read-only, or closed by permissions."""

import ctypes
import errno
import json
import os
import re
import resource
import signal
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import powerloss
import processes
from checks import (
    SHORT,
    Report,
    Row,
    arguments,
    compare,
    find_damage,
    lost_steps,
    newest_step,
    resume_and_compare,
    spread,
    train_reference,
)
from faults import CHECKPOINTS, METRICS, RESUME
from processes import Fault, Kill, Launcher


class Disks:
    """Trials that resume a run on a bad disk, and then on a good one."""

    def __init__(self, launcher: Launcher, work: Path, most: int | None, report: Report) -> None:
        """Train half of a run. `most` limits the trials of each kind."""
        self.launcher, self.work, self.most, self.report = launcher, work, most, report
        self.halfway = processes.write_text(work / "disk")
        self.expected, _ = train_reference(launcher, processes.copy(self.halfway, work / "reference"), SHORT)
        launcher.run(self.halfway, arguments(SHORT), kill=Kill(processes.SAVE, 3, 0, signal.SIGKILL))
        run = self.halfway / "runs/run"
        self.checkpoint = run / f"checkpoints/step-{newest_step(run):08d}"

    def resume(
        self,
        kind: str,
        folder: Path,
        setup: Callable[[], object] = lambda: None,
        repair: Callable[[], object] = lambda: None,
        log: Path | None = None,
    ) -> None:
        """Resume a run that `setup` limits. If it gives up, repair the disk and resume again."""
        run, output = folder / "runs/run", self.work / "output.txt"  # on a disk with space
        before, fault = newest_step(run), Fault(folder / "runs", log=log) if log else None
        result = self.launcher.run(folder, RESUME, fault, setup=setup, output=output)
        lost = lost_steps(result, run)
        repair()
        problem = find_damage(run, max(before, result.progress.saved))
        if result.code == 0:
            problem = problem or compare(self.expected, run, METRICS)
        else:
            problem = problem or result.problem_with_error()
            problem = problem or resume_and_compare(self.launcher, folder, SHORT, self.expected)
        if log:
            kind = f"{kind}, {_first_refused(powerloss.read_log(log, folder))}"
        self.report.add(kind, problem, "resume", lost)

    def try_all(self) -> None:
        """Limit file sizes, remove permissions, and fill a small disk if this system can mount one."""
        for name in ("model.safetensors", "optimizer.safetensors"):
            size = (self.checkpoint / name).stat().st_size - 1
            limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (size, size))
            folder = processes.copy(self.halfway, self.work / "trial")
            self.resume(f"limit on file sizes, below {name}", folder, limit)
        for name in ("runs", "runs/run", CHECKPOINTS):
            folder = processes.copy(self.halfway, self.work / "trial")
            (folder / name).chmod(0o555)
            restore = partial((folder / name).chmod, 0o755)
            self.resume(f"no permission to write in {name}", folder, _drop_privileges, restore)
        results, child = self.work / "small.json", os.fork()
        if child == 0:  # the disk exists as long as this child and its children
            try:
                self.report = Report()
                self._try_small_disk(self.work / "small")
                rows = [asdict(row) for row in self.report.rows.values()]
                results.write_text(json.dumps(rows), encoding="utf-8")
                os._exit(0)
            except BaseException as error:
                print(f"on the small disk: {error!r}", file=sys.stderr, flush=True)
            finally:
                os._exit(1)
        if os.waitpid(child, 0)[1]:
            self.report.add("full disk", "the trial failed", "see above")
            return
        for row in json.loads(results.read_text(encoding="utf-8")):
            self.report.rows[row["fault"]] = Row(**row)

    def _try_small_disk(self, small: Path) -> None:
        """Leave from no pages to as many as a save needs. Then make the disk read-only."""
        try:
            _mount(small, 4 << 20)
        except OSError as error:
            print(f"cannot try full and read-only disks, because mounting failed: {error}", file=sys.stderr)
            return
        page, ballast, log = os.statvfs(small).f_frsize, small / "ballast", self.work / "small.log"
        needed = 6 + sum(-(-path.stat().st_size // page) for path in self.checkpoint.iterdir())
        for pages in spread(range(needed), self.most):
            folder = processes.copy(self.halfway, small / "trial")
            ballast.write_bytes(bytes((os.statvfs(small).f_bavail - pages) * page))
            log.unlink(missing_ok=True)
            self.resume("full disk", folder, repair=ballast.unlink, log=log)
        folder = processes.copy(self.halfway, small / "trial")
        _remount(small, read_only=True)
        self.resume("read-only disk", folder, repair=partial(_remount, small, read_only=False))


def _first_refused(log: Iterable[powerloss.Record]) -> str:
    """Return which file was the first for which no space was left."""
    for record in log:
        if record.kind == "E" and record.number == errno.ENOSPC:
            name = Path(record.path).name
            name = "*.safetensors" if name.startswith(".tmp") else re.sub(r"^\.(.+)\.[0-9a-f]+\.tmp$", r"\1", name)
            return f"first refused: {name}"
    return "with enough space"


def _drop_privileges() -> None:
    """Drop the capabilities of root, so that permissions apply."""
    header, none = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    if os.geteuid() == 0:
        _call("capset", header, none)


def _mount(folder: Path, size: int) -> None:
    """Mount a disk of `size` bytes that only this process and its children see. Raises OSError."""
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
