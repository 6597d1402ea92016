"""Cut the power of a real disk while training saves: an ext4 file system in a file, mounted as a loop device."""

import fcntl
import os
import random
import shutil
import signal
import struct
import subprocess
import time
from pathlib import Path

import mounts
import processes
from checks import SHORT, Report, arguments, find_damage, lost_steps, resume_and_compare, train_reference
from mounts import UnavailableMountError, mount
from processes import SAVE, START, STEP, Event, Launcher

EXT4_IOC_SHUTDOWN = 0x8004587D
NO_LOG_FLUSH = struct.pack("I", 2)
"""Drop everything that is not on the disk yet, including the file system's journal."""


def try_power_cuts(launcher: Launcher, work: Path, cuts: int, seed: int, report: Report) -> None:
    """Train on new disks, cut the power at a random moment, and resume."""
    folder = processes.write_text(work / "text")
    expected, reference = train_reference(launcher, processes.copy(folder, work / "cut reference"), SHORT)

    def trials() -> Report:
        report, generator = Report(), random.Random(seed)
        for number in range(cuts):
            disk = _mount_new_disk(work)
            folder = processes.write_text(disk / "folder")
            subprocess.run(["sync", "-f", str(disk)], check=True)
            phase = generator.choice((START, STEP, SAVE, SAVE, SAVE))
            entry = generator.randint(1, reference.progress.entries[phase]) if phase else 0
            delay = generator.uniform(0, reference.progress.mean_seconds(phase) if phase else 0.3)

            def cut(process: int, disk: Path = disk) -> None:
                descriptor = os.open(disk, os.O_RDONLY)
                fcntl.ioctl(descriptor, EXT4_IOC_SHUTDOWN, NO_LOG_FLUSH)
                os.close(descriptor)
                os.kill(process, signal.SIGKILL)

            event = Event(phase, entry, delay, cut)
            result = launcher.run(folder, arguments(SHORT), event=event, output=work / "output.txt")
            _unmount(disk)
            mount("ext4", disk, "loop", str(work / "disk.img"))
            run = folder / "runs/run"
            problem, lost = find_damage(run, result.progress.saved), lost_steps(result, run)
            problem = problem or resume_and_compare(launcher, folder, SHORT, expected)
            where = f"cut {number}, {processes.PHASES[result.progress.phase]}"
            report.add("power cut on a mounted ext4", problem, where, lost)
            _unmount(disk)
        return report

    mounts.try_on_mounts(trials, work / "cuts.json", report)


def _mount_new_disk(work: Path) -> Path:
    """Make a file system in a file, and return the folder where it is mounted. Raises UnavailableMountError."""
    image, disk = work / "disk.img", work / "ext4"
    if not shutil.which("mkfs.ext4"):
        raise UnavailableMountError("there is no mkfs.ext4")
    image.unlink(missing_ok=True)
    with open(image, "wb") as file:
        file.truncate(32 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True, capture_output=True)
    mount("ext4", disk, "loop", str(image))
    return disk


def _unmount(disk: Path) -> None:
    """Unmount a disk. The kernel may need a moment to close the files of a killed process."""
    for _ in range(50):
        done = subprocess.run(["umount", str(disk)], capture_output=True, text=True, check=False)
        if not done.returncode:
            return
        time.sleep(0.1)
    raise RuntimeError(done.stderr)
