"""Whether everything that runs keep on disk is as it was written."""

import json
import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from minigpt.config import resolve as config
from minigpt.errors import UserError, escape, reason
from minigpt.files import open_within, read_text_within, read_within
from minigpt.storage import metadata as meta
from minigpt.storage.metadata import LIMITS
from minigpt.storage.runs import (
    CHECKPOINTS,
    ENVIRONMENT_LIMIT,
    QUARANTINED,
    RUNS,
    all_runs,
    checkpoint_steps,
    pointed_step,
    step_folder,
    was_started,
)

LINE_LIMIT, RECORD_LIMIT = 1 << 20, 64 << 20
"""Bytes that a line of metrics.jsonl, and a record of TensorBoard's, can have at most."""


@dataclass(frozen=True)
class Checked:
    """One line of `minigpt runs --verify`: what was looked at, and what is wrong with it."""

    run: str
    what: str
    problem: str | None


def verify_runs(root: Path = RUNS) -> Iterator[Checked]:
    """Check every file of every run under `root`, also of those that have lost their settings."""
    folders = {path for path in root.glob("*") if was_started(path)} - set(all_runs(root))
    for run in [*all_runs(root), *sorted(folders)]:
        for what, check, path in _checks(run):
            problem = None
            try:
                check(path)
            except UserError as error:
                if check is meta.verify and not path.exists():
                    continue  # a training beside this has removed it by now
                problem = str(error)
            except OSError as error:  # as of a bad sector
                problem = f"{escape(path)} cannot be read: {reason(error)}"
            yield Checked(run.name, what, problem)


def _checks(run: Path) -> Iterator[tuple[str, Callable[[Path], object], Path]]:
    yield "config.yaml", _check_config, run / "config.yaml"
    steps = checkpoint_steps(run)
    events = sorted((run / "tensorboard").glob("events.*")) or [run / "tensorboard" / "events.*"]
    beside = [
        ("environment.json", _check_json, run / "environment.json"),
        ("metrics.jsonl", _check_curves, run / "metrics.jsonl"),
        *(("curves", _check_events, path) for path in events),
    ]
    yield from (one for one in beside if steps or one[-1].exists())  # all of it is there before a checkpoint is
    yield from ((f"step {step}", meta.verify, step_folder(run, step)) for step in steps)
    pointers = [run / CHECKPOINTS / name for name in ("last", "best")]
    yield from ((f"pointer {path.name}", _check_pointer, path) for path in pointers if steps or path.exists())
    yield from ((path.name, _report_aside, path) for path in sorted((run / CHECKPOINTS).glob(f"{QUARANTINED}*")))


def _check_config(path: Path) -> None:
    config.from_yaml(read_text_within(path, path.parent, LIMITS[path.name]), str(path))


def _check_json(path: Path) -> None:
    try:
        json.loads(read_within(path, path.parent, ENVIRONMENT_LIMIT))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not valid JSON") from error


def _check_curves(path: Path) -> None:
    """Each line tells of a step, in order. A last line without an end is what a kill leaves, and a resume removes."""
    last, number = 0, 0
    with open_within(path, path.parent) as file:
        while line := file.readline(LINE_LIMIT):
            number += 1
            if not line.endswith(b"\n") and len(line) < LINE_LIMIT:
                return
            try:
                step = json.loads(line)["step"]
                in_order = step >= last
            except (ValueError, KeyError, TypeError, RecursionError):
                in_order = False
            if not in_order:
                raise UserError(f"{path} line {number} is damaged; TensorBoard's curves are kept beside it")
            last = step


def _check_events(path: Path) -> None:
    """Each record has the checksums that it was written with. A part of a last record is what a kill leaves."""
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

    with open_within(path, path.parent) as file:
        size = os.fstat(file.fileno()).st_size
        while len(header := file.read(12)) == 12:
            length, checksum = struct.unpack("<QI", header)
            whole = masked_crc32c(header[:8]) == checksum and length <= RECORD_LIMIT
            if whole and length > size - file.tell() - 4:
                return
            record = file.read(length) if whole else b""
            if not whole or masked_crc32c(record) != struct.unpack("<I", file.read(4))[0]:
                raise UserError(f"{path} is damaged: TensorBoard shows its curves up to there only")


def _check_pointer(path: Path) -> None:
    if pointed_step(path.parent.parent, path.name) is None:
        raise UserError(f"{path} names no checkpoint; the next save writes it anew")


def _report_aside(path: Path) -> None:
    raise UserError("set aside by a resume that could not use it; delete it when it is of no use")
