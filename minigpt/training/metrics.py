"""Reports of a run: `metrics.jsonl`, TensorBoard, and the terminal."""

import hashlib
import json
import math
import os
import shutil
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

from minigpt.errors import escape, reason
from minigpt.paths import VALIDATION
from minigpt.storage.metadata import Metadata
from minigpt.training.signals import STDERR

GROUPS = {
    "speed": "2 speed",
    "time": "2 speed/time",
    "memory": "2 speed/memory",
    "optimizer": "3 optimizer",
    "weights": "4 model/weights",
    "gradients": "4 model/gradients",
    "heads": "5 attention/heads",
    "attention": "5 attention",
}
"""TensorBoard's group of charts for the first part of each tag. The numbers set the order of the groups."""
LOSSES = {"loss": "1 loss/loss", "bits_per_character": "1 loss/loss, bits per char"}
"""TensorBoard's first charts, with training and validation together."""
FLUSH_SECONDS = 10
QUIET_SECONDS = 30
"""Without a terminal, print the progress if nothing was printed for so long."""
BAR = "{percentage:3.0f}%|{bar}| {n}/{total} steps [{elapsed}<{remaining}]{postfix}"


class Metrics:
    """Report what happens in a run. Without a run folder, report nothing.

    A resumed run first removes what was written after its checkpoint, so each curve has each step once. A failed
    write does not end training: lines of `metrics.jsonl` wait in memory, and logging to TensorBoard stops.

    TensorBoard gives each run one color, so it shows a run as two: NAME, and NAME/validation for the validation loss.
    """

    def __init__(self, run: Path | None = None, resumed: Metadata | None = None) -> None:
        self.is_silent = run is None
        self.boards: dict[str, SummaryWriter] = {}
        """TensorBoard's writers: "" for the run, and VALIDATION. Empty after a failed write."""
        self.bar: tqdm[Any] | None = None
        self.printed = time.monotonic()
        """When the last line was printed."""
        self.began: tuple[float, int] | None = None
        """When `progress` was first called, and the step then."""
        self.pending, self.is_failing = b"", False
        self.size, self.digest = resumed.metrics_bytes if resumed else 0, hashlib.sha256()
        """The size and the SHA-256 of metrics.jsonl, including pending lines."""
        self.run, self.path, self.resumed = run, (run or Path()) / "metrics.jsonl", resumed
        self.lines: Any = None
        """metrics.jsonl, between `__enter__` and `close`."""
        self.excepthook = threading.excepthook

    def __enter__(self) -> "Metrics":
        """Open the files. Before, only messages are reported."""
        if self.run is None:
            return self
        step, content = self.resumed.step if self.resumed else 0, _kept_lines(self.path, self.resumed)
        threading.excepthook = self._ignore_disk_errors  # before TensorBoard starts a thread
        # In older files, TensorBoard ignores events from purge_step on.
        options: Any = {"purge_step": step + (step > 0), "flush_secs": FLUSH_SECONDS}
        self.boards = {name: SummaryWriter(str(self.run / name), **options) for name in ("", VALIDATION)}
        self.lines = open(self.path, "ab", buffering=0)
        self.lines.truncate(len(content))
        self.size, self.digest = len(content), hashlib.sha256(content)
        if self.resumed and self.sha256 != self.resumed.metrics_sha256:
            self.message(f"{self.path} has changed since step {step}: its curves may be damaged")
        return self

    @property
    def sha256(self) -> str:
        """The hash of metrics.jsonl. If nothing is reported, the hash in the checkpoint from which the run resumed."""
        return self.resumed.metrics_sha256 if self.is_silent and self.resumed else self.digest.hexdigest()

    def log(self, step: int, seconds: float, scalars: Mapping[str, float]) -> None:
        """Write scalars by tag to `metrics.jsonl` and TensorBoard. `seconds` is the age of the run."""
        if self.is_silent:
            return
        numbers = {tag: value if math.isfinite(value) else None for tag, value in scalars.items()}  # JSON has no NaN
        line = (json.dumps({"step": step, "time": round(seconds, 3), **numbers}) + "\n").encode()
        self.pending += line
        self.size += len(line)
        self.digest.update(line)
        self._write_pending()
        for tag, value in scalars.items():
            self.to_tensorboard("add_scalar", tag, value, step)

    def to_tensorboard(self, method: str, tag: str, *arguments: Any, **options: Any) -> None:
        """Call a method of torch's SummaryWriter that takes a tag, such as "add_image"."""
        kind, _, name = tag.partition("/")
        chart = LOSSES.get(kind) or "/".join(filter(None, (GROUPS.get(kind, kind), name)))
        run = VALIDATION if name == VALIDATION else ""
        self._to_boards(lambda board: getattr(board, method)(chart, *arguments, **options), run)

    def _to_boards(self, write: Callable[[SummaryWriter], object], *names: str) -> None:
        """Write to TensorBoard with the writers of these `names`. If that fails, stop using TensorBoard."""
        try:
            for name in names:
                if name in self.boards:
                    write(self.boards[name])
        except OSError as error:
            self.boards = {}
            self.message(f"cannot write to TensorBoard: {reason(error)}; metrics.jsonl keeps the scalars")

    def message(self, line: str) -> None:
        """Print a line above the progress bar. A terminal wraps it between words."""
        if not self.is_silent:
            self.printed = time.monotonic()
            text, width = escape(line), shutil.get_terminal_size().columns
            if sys.stderr.isatty() and len(text) > width:
                text = textwrap.fill(text, width, break_long_words=False)
            tqdm.write(f"{text}\n", file=STDERR, end="")

    def progress(self, step: int, steps: int, status: str) -> None:
        """Move the progress bar to `step` of `steps`, and show `status` beside it.

        Without a terminal, as in a log file, print a line instead if nothing was printed for a while.
        """
        if self.is_silent:
            return
        if not sys.stderr.isatty():
            self._print_progress(step, steps, status)
            return
        if self.bar is None:
            self.bar = tqdm(initial=step, total=steps, unit="step", file=STDERR, dynamic_ncols=True, bar_format=BAR)
        self.bar.set_postfix_str(status, refresh=False)
        self.bar.n = step
        self.bar.refresh()

    def _print_progress(self, step: int, steps: int, status: str) -> None:
        now = time.monotonic()
        began, start = self.began = self.began or (now, step)
        if now < self.printed + QUIET_SECONDS:
            return
        line = f"{step:,} of {steps:,} steps"
        if step > start:
            seconds = (now - began) * (steps - step) / (step - start)
            line += f", {tqdm.format_interval(seconds)} left"
        self.message(f"{line}, {status}")

    def flush(self) -> None:
        """Write what is pending to disk. Call it before a checkpoint claims that its steps are logged."""
        self._to_boards(SummaryWriter.flush, *self.boards)
        if self.lines:
            self._write_pending(sync=True)

    def close(self) -> None:
        """Write what is pending and close the files."""
        if self.lines is None or self.lines.closed:
            return
        self.flush()
        self._to_boards(SummaryWriter.close, *self.boards)
        if self.bar is not None:
            self.bar.close()
        if self.pending:
            self.message(f"{self.path}: lost the last {len(self.pending):,} bytes, the disk is full")
        self.lines.close()
        threading.excepthook = self.excepthook

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ignore_disk_errors(self, thread: threading.ExceptHookArgs) -> None:
        """Hide tracebacks of disk errors in TensorBoard's thread. The next call of a writer raises the same error."""
        if not issubclass(thread.exc_type, OSError):
            self.excepthook(thread)

    def _write_pending(self, sync: bool = False) -> None:
        """Write the pending lines. If a write fails, keep the lines in memory."""
        try:
            while self.pending:
                self.pending = self.pending[self.lines.write(self.pending) :]
            if sync:
                os.fsync(self.lines.fileno())
        except OSError as error:
            if not self.is_failing:
                self.message(f"cannot write {self.path}: {reason(error)}; keeping the lines in memory")
            self.is_failing = True
        else:
            if self.is_failing:
                self.message(f"{self.path} is writable again; no line was lost")
            self.is_failing = False


def _kept_lines(path: Path, resumed: Metadata | None) -> bytes:
    """Return the lines of `metrics.jsonl` up to the checkpoint of a resumed run."""
    if resumed is None or not path.exists():
        return b""
    with open(path, "rb") as file:
        content = file.read(min(resumed.metrics_bytes, path.stat().st_size))
    return content[: content.rfind(b"\n") + 1]
