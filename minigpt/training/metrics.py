"""Reports of a run: `metrics.jsonl`, TensorBoard, and the terminal."""

import json
import math
import os
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

from minigpt.errors import escape, reason
from minigpt.paths import VALIDATION
from minigpt.storage.records import LONGEST_LINE
from minigpt.training.signals import STDERR, word_wrapped

GROUPS = {
    "speed": "2 speed",
    "time": "2 speed/time",
    "memory": "2 speed/memory",
    "optimizer": "3 optimizer",
}
"""TensorBoard's group of charts for the first part of each tag. The numbers set the order of the groups."""
LOSSES = {"loss": "1 loss/loss", "bits_per_character": "1 loss/loss, bits per char"}
"""TensorBoard's first charts, with training and validation together."""
BAR = "{percentage:3.0f}%|{bar}| {n}/{total} steps [{elapsed}<{remaining}]{postfix}"


class Metrics:
    """Report what happens in a run. Without a run folder, report nothing.

    A resumed run first removes what was written after its checkpoint, so each curve has each step once. A failed
    write does not end training.

    TensorBoard gives each run one color, so it shows a run as two: NAME, and NAME/validation for the validation loss.
    """

    def __init__(self, run: Path | None = None, step: int = 0) -> None:
        """Report on `run` from `step` on. A run at step 0 has no curves yet."""
        self.run, self.path = run, (run or Path()) / "metrics.jsonl"
        self.purge_step = step + (step > 0)
        self.is_silent = run is None
        self.lines: Any = None
        """metrics.jsonl, after `__enter__`."""
        self.is_torn = False
        """Whether the last line may be incomplete."""
        self.boards: dict[str, SummaryWriter] = {}
        """TensorBoard's writers: "" for the run, and VALIDATION."""
        self.bar: tqdm[Any] | None = None
        self.excepthook = threading.excepthook

    def __enter__(self) -> "Metrics":
        """Open the files. Before, only messages are reported."""
        if self.run is None:
            return self
        threading.excepthook = self._ignore_disk_errors  # before TensorBoard starts a thread
        options: Any = {"purge_step": self.purge_step, "flush_secs": 10}  # hides the events of older files from there
        self.boards = {name: SummaryWriter(str(self.run / name), **options) for name in ("", VALIDATION)}
        self.lines = open(self.path, "ab", buffering=0)
        self.lines.truncate(_size_before(self.path, self.purge_step))
        return self

    def log(self, step: int, seconds: float, scalars: Mapping[str, float]) -> None:
        """Write scalars by tag to `metrics.jsonl` and TensorBoard. `seconds` is the age of the run."""
        if self.lines is None:
            return
        numbers = {tag: value if math.isfinite(value) else None for tag, value in scalars.items()}  # JSON has no NaN
        line = (json.dumps({"step": step, "time": round(seconds, 3), **numbers}) + "\n").encode()
        was_torn, self.is_torn = self.is_torn, True
        line = b"\n" * was_torn + line
        try:
            while line:
                line = line[self.lines.write(line) :]
            self.is_torn = False
        except OSError as error:
            if not was_torn:
                self.message(f"cannot write {self.path}: {reason(error)}; its curves have a gap from step {step} on")
        for tag, value in scalars.items():
            self.to_tensorboard("add_scalar", tag, value, step)

    def to_tensorboard(self, method: str, tag: str, value: float | str, step: int) -> None:
        """Call a method of torch's SummaryWriter: "add_scalar" or "add_text"."""
        kind, _, name = tag.partition("/")
        chart = LOSSES.get(kind) or "/".join(filter(None, (GROUPS.get(kind, kind), name)))
        try:
            if board := self.boards.get(VALIDATION if name == VALIDATION else ""):
                getattr(board, method)(chart, value, step)
        except OSError as error:
            self.boards = {}
            self.message(f"cannot write to TensorBoard: {reason(error)}; metrics.jsonl keeps the scalars")

    def message(self, line: str) -> None:
        """Print a line above the progress bar. A terminal wraps it between words."""
        if not self.is_silent:
            tqdm.write(f"{word_wrapped(escape(line))}\n", file=STDERR, end="")

    def progress(self, step: int, steps: int, status: str) -> None:
        """Move the progress bar, which only a terminal has, to `step` of `steps`. Show `status` beside it."""
        if self.is_silent or not sys.stderr.isatty():
            return
        if self.bar is None:
            self.bar = tqdm(initial=step, total=steps, unit="step", file=STDERR, dynamic_ncols=True, bar_format=BAR)
        self.bar.set_postfix_str(status, refresh=False)
        self.bar.n = step
        self.bar.refresh()

    def flush(self) -> None:
        """Write everything to disk. Call it before a checkpoint claims that its steps are logged."""
        with suppress(OSError):  # the next call of `log` or `to_tensorboard` reports it
            if self.lines:
                os.fsync(self.lines.fileno())
            for board in self.boards.values():
                board.flush()

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.close()
        if self.lines is None:
            return
        self.flush()
        self.lines.close()
        with suppress(OSError):
            for board in self.boards.values():
                board.close()
        threading.excepthook = self.excepthook

    def _ignore_disk_errors(self, thread: threading.ExceptHookArgs) -> None:
        """Hide tracebacks of disk errors in TensorBoard's thread. The next call of a writer raises the same error."""
        if not issubclass(thread.exc_type, OSError):
            self.excepthook(thread)


def _size_before(path: Path, step: int) -> int:
    """Return the size of the complete lines of `metrics.jsonl` before the first line of `step` or later."""
    size = end = 0
    with open(path, "rb") as file:
        while line := file.readline(LONGEST_LINE):
            with suppress(ValueError, KeyError, TypeError, RecursionError):  # keep a damaged line
                if json.loads(line)["step"] >= step:
                    break
            end += len(line)
            size = end if line.endswith(b"\n") else size
    return size
