"""Resume training on disks that limit file sizes or lack permissions, and with a damaged config.yaml."""

import ctypes
import os
import random
import resource
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

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
    train_reference,
)
from faults import CHECKPOINTS, METRICS, RESUME
from processes import SAVE, Event, Launcher, send


class Disks:
    """Trials that resume a run on a bad disk, and then on a good one."""

    def __init__(self, launcher: Launcher, work: Path, report: Report) -> None:
        """Train half of a run."""
        self.launcher, self.work, self.report = launcher, work, report
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
    ) -> None:
        """Resume a run that `setup` limits. Then repair the disk, and if the run gave up, resume it again."""
        run, output = folder / "runs/run", self.work / "output.txt"  # on a disk with space
        before = newest_step(run)
        result = self.launcher.run(folder, RESUME, setup=setup, output=output)
        lost = lost_steps(result, run)
        repair()
        problem = find_damage(run, max(before, result.progress.saved))
        if result.code == 0:
            problem = problem or compare(self.expected, run, METRICS)
        else:
            problem = problem or result.problem_with_error()
            problem = problem or resume_and_compare(self.launcher, folder, SHORT, self.expected)
        self.report.add(kind, problem, "resume", lost)

    def try_all(self, settings: int) -> None:
        """Limit file sizes, remove permissions and damage settings."""
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


def _drop_privileges() -> None:
    """Drop the capabilities of root, so that permissions apply."""
    header, none = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    if os.geteuid() == 0 and ctypes.CDLL(None).capset(header, none):
        raise OSError("cannot drop the capabilities")
