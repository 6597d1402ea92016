"""Resume training on disks that are full, limited, read-only, layered, or lack permissions."""

import ctypes
import errno
import os
import random
import re
import resource
import signal
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import mounts
import powerloss
import processes
from checks import (
    SHORT,
    Report,
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
from mounts import remount
from processes import SAVE, Event, Fault, Launcher, send


class Disks:
    """Trials that resume a run on a bad disk, and then on a good one."""

    def __init__(self, launcher: Launcher, work: Path, most: int | None, report: Report) -> None:
        """Train half of a run. `most` limits the trials of each kind."""
        self.launcher, self.work, self.most, self.report = launcher, work, most, report
        self.halfway = processes.write_text(work / "disk")
        self.expected, _ = train_reference(launcher, processes.copy(self.halfway, work / "reference"), SHORT)
        launcher.run(self.halfway, arguments(SHORT), event=Event(SAVE, 3, 0, send(signal.SIGKILL)))
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

    def try_all(self, settings: int, overlays: int) -> None:
        """Limit file sizes, remove permissions, damage settings, and mount disks if this system can."""
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
        for seed in range(settings):
            self._damage_settings(random.Random(seed))
        for trials in (self._try_small_disk, partial(self._try_overlays, overlays)):
            mounts.try_on_mounts(trials, self.work / "mounted.json", self.report)

    def _damage_settings(self, generator: random.Random) -> None:
        """Flip a bit of the run's config.yaml. Resuming must report the change and repair the file."""
        folder = processes.copy(self.halfway, self.work / "trial")
        run, copy = folder / "runs/run", folder / "runs/run/config.yaml"
        content = bytearray(copy.read_bytes())
        at, bit = generator.randrange(len(content)), generator.randrange(8)
        content[at] ^= 1 << bit
        copy.write_bytes(content)
        result = self.launcher.run(folder, RESUME)
        problem = f"exit code {result.code}: {result.last_line}" if result.code else compare(self.expected, run)
        if "config.yaml differs from the settings of the checkpoint" not in result.output:
            problem = problem or "the change of config.yaml is not reported"
        if copy.read_bytes() != (run / f"checkpoints/step-{newest_step(run):08d}/config.yaml").read_bytes():
            problem = problem or "config.yaml is not repaired"
        self.report.add("a flipped bit in config.yaml", problem, f"bit {bit} of byte {at}")

    def _try_small_disk(self) -> Report:
        """Leave from no pages to as many as a save needs. Then make the disk read-only."""
        self.report, small = Report(), self.work / "small"
        mounts.mount("tmpfs", small, "size=4M")
        page, ballast, log = os.statvfs(small).f_frsize, small / "ballast", self.work / "small.log"
        needed = 6 + sum(-(-path.stat().st_size // page) for path in self.checkpoint.iterdir())
        for pages in spread(range(needed), self.most):
            folder = processes.copy(self.halfway, small / "trial")
            ballast.write_bytes(bytes((os.statvfs(small).f_bavail - pages) * page))
            log.unlink(missing_ok=True)
            self.resume("full disk", folder, repair=ballast.unlink, log=log)
        folder = processes.copy(self.halfway, small / "trial")
        remount(small, read_only=True)
        self.resume("read-only disk", folder, repair=partial(remount, small, read_only=False))
        return self.report

    def _try_overlays(self, overlays: int) -> Report:
        """Resume runs in the lower layer of an overlayfs, as in a container image. Damage some and kill some."""
        report, layers = Report(), self.work / "layers"
        mounts.mount("tmpfs", layers, "size=64M")
        for i in range(overlays):
            base, is_damaged, is_killed = layers / str(i), i % 2 == 1, i // 2 % 2 == 1
            for name in ("upper", "work"):
                (base / name).mkdir(parents=True)
            newest = processes.copy(self.halfway, base / "lower") / self.checkpoint.relative_to(self.halfway)
            if is_damaged:
                damaged = newest / ("model.safetensors", "metadata.json")[i // 4 % 2]
                damaged.write_bytes(damaged.read_bytes()[:-1])
            options = f"lowerdir={base}/lower,upperdir={base}/upper,workdir={base}/work"
            mounts.mount("overlay", base / "merged", options)
            if is_killed:
                event = Event(SAVE, 2, 0.002 * (i // 4), send(signal.SIGKILL))
                self.launcher.run(base / "merged", RESUME, event=event)
            problem = resume_and_compare(self.launcher, base / "merged", SHORT, self.expected)
            visible = sorted(path.name for path in (base / "merged" / CHECKPOINTS).glob("step-*"))
            if len(visible) > SHORT["train.keep_last"] + 1:  # and the best
                problem = problem or f"old checkpoints are not removed: {', '.join(visible)}"
            kind = "newest checkpoint damaged" if is_damaged else "intact"
            report.add(f"lower layer of an overlayfs, {kind}", problem, "killed, too" if is_killed else "resumed")
        return report


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
        mounts.call("capset", header, none)
