"""Mount disks that only this process and its children see. This needs Linux, and root or user namespaces."""

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from checks import Report, Row

REMOUNT = 1 << 5
"""A flag of mount()."""


def try_on_mounts(trials: Callable[[], Report], results: Path, report: Report) -> None:
    """Call `trials` in a child that may mount disks, and add its table. `results` is a file for that table."""
    child = os.fork()
    if child == 0:  # the mounts exist as long as this child and its children
        try:
            _unshare()
            rows = [asdict(row) for row in trials().rows.values()]
            results.write_text(json.dumps(rows), encoding="utf-8")
            os._exit(0)
        except UnavailableMountError as error:
            print(f"skipped the trials on mounted disks: {error}", file=sys.stderr, flush=True)
            results.write_text("[]", encoding="utf-8")
            os._exit(0)
        except BaseException as error:
            print(f"on a mounted disk: {error!r}", file=sys.stderr, flush=True)
        finally:
            os._exit(1)
    if os.waitpid(child, 0)[1]:
        report.add("mounted disks", "the trials failed", "see above")
        return
    for row in json.loads(results.read_text(encoding="utf-8")):
        report.rows[row["fault"]] = Row(**row)


class UnavailableMountError(Exception):
    """This machine cannot mount a disk."""


def mount(kind: str, folder: Path, options: str, source: str = "none") -> None:
    """Mount a disk at a new or an empty folder. Raises UnavailableMountError."""
    folder.mkdir(exist_ok=True)
    command = ["mount", "-t", kind, "-o", options, source, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UnavailableMountError(f"cannot mount {kind}: {done.stderr.strip()}")


def remount(folder: Path, read_only: bool) -> None:
    """Make a mounted disk read-only, or writable again. Raises OSError."""
    call("mount", None, bytes(folder), None, REMOUNT | read_only, None)


def call(function: str, *arguments: Any) -> None:
    """Call a function of the C library. Raises OSError."""
    if getattr(ctypes.CDLL(None, use_errno=True), function)(*arguments):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _unshare() -> None:
    """Move this process into a private mount namespace."""
    new_user, new_mounts, private = 0x10000000, 0x00020000, (1 << 14) | (1 << 18)
    user, group = os.getuid(), os.getgid()
    try:
        call("unshare", new_mounts | (new_user if user else 0))
        if user:
            for name, content in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
                Path("/proc/self", name).write_text(content)
        call("mount", None, b"/", None, private, None)
    except OSError as error:
        raise UnavailableMountError(f"cannot create a mount namespace: {error}") from error
