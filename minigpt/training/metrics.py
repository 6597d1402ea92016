"""Reports of a run: `metrics.jsonl`, `log.txt`, TensorBoard, and the progress that a terminal or notebook shows."""

import json
import math
import os
import shutil
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from tensorboard.plugins.hparams.summary_v2 import hparams_pb
from torch.utils.tensorboard import SummaryWriter
from tqdm.auto import tqdm

from minigpt.config.resolve import show
from minigpt.errors import escape, reason
from minigpt.paths import LOG, METRICS, TENSORBOARD
from minigpt.storage.records import LONGEST_LINE
from minigpt.training.signals import STDERR, word_wrapped

Split = Literal["train", "validation"]
"""The part of the text that a number was measured on, and the folder of its TensorBoard run."""
BAR = "{{percentage:3.0f}}%|{{bar}}| {{n:{width}}}/{{total}} {{elapsed}}<{{remaining}} {{desc}}"
PAUSE = 30.0
"""Seconds between lines of progress in `log.txt`, and on stderr if no bar is shown."""


class Metrics:
    """Report what happens in a run. Without a run folder, report nothing.

    A resumed run first removes the numbers after its checkpoint, so no curve has a step twice. `log.txt` keeps
    every line. A failed write does not end training.
    """

    def __init__(
        self,
        run: Path | None = None,
        step: int = 0,
        *,
        settings: Mapping[str, Any] | None = None,
        printed: Sequence[str] = (),
    ) -> None:
        """Report on `run` from `step` on. A run at step 0 has no curves yet.

        Args:
            settings: The settings by which TensorBoard compares runs.
            printed: Lines that the user has seen already, for `log.txt`.
        """
        self.run, self.path = run, (run or Path()) / METRICS
        self.settings = settings or {}
        self.purge_step = step + (step > 0)
        self.is_silent = run is None
        self.lines: Any = None
        """metrics.jsonl, after `__enter__`."""
        self.is_torn = False
        """Whether the last line may be incomplete."""
        self.printed = [f"--- {time.strftime('%Y-%m-%d %H:%M:%S')}, step {step}", *printed]
        """Lines that wait for the first line of log.txt after `__enter__`."""
        self.boards: dict[str, SummaryWriter] = {}
        """TensorBoard's writers by split."""
        self.bar: tqdm[Any] | None = None
        self.noted = time.monotonic()
        self.timed: tuple[int, float] | None = None
        """The first step of this session, and when it ended."""
        self.first_step, self.keeps_log = step, True
        self.excepthook = threading.excepthook

    def __enter__(self) -> "Metrics":
        """Open the files."""
        if self.run is None:
            return self
        threading.excepthook = self._ignore_disk_errors  # before TensorBoard starts a thread
        options: Any = {"purge_step": self.purge_step, "flush_secs": 10}  # hides older events from `purge_step` on
        board = self.run / TENSORBOARD
        self.boards = {split: SummaryWriter(str(board / split), **options) for split in ("train", "validation")}
        shown = {key: value if isinstance(value, int | float) else show(value) for key, value in self.settings.items()}
        # In the folder of the validation loss, which is then a column of TensorBoard's table of runs.
        self.boards["validation"]._get_file_writer().add_summary(hparams_pb(shown, self.run.name))
        self.lines = open(self.path, "ab", buffering=0)
        self.lines.truncate(_size_before(self.path, self.purge_step))
        return self

    def log(self, split: Split, step: int, seconds: float, scalars: Mapping[str, float]) -> None:
        """Write scalars by tag to `metrics.jsonl` and TensorBoard. `seconds` is the training time over all sessions."""
        if self.lines is None:
            return
        numbers = {tag: value if math.isfinite(value) else None for tag, value in scalars.items()}  # JSON has no NaN
        entry = {"step": step, "time": round(seconds, 3), "split": split, **numbers}
        line = (json.dumps(entry) + "\n").encode()
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
            self._to_tensorboard("add_scalar", split, tag, value, step)

    def sample(self, step: int, text: str) -> None:
        """Report a text that the model wrote: its start on stderr, all of it in `log.txt` and TensorBoard."""
        lines = [f"    {line}" for line in text.splitlines()]
        self._to_tensorboard("add_text", "validation", "sample", "\n".join(lines), step)  # as code
        self._print(f"    {escape(' '.join(text.split()))}"[: shutil.get_terminal_size().columns])
        self._keep(*lines)

    def _to_tensorboard(self, method: str, split: Split, tag: str, value: float | str, step: int) -> None:
        """Call a method of torch's SummaryWriter."""
        try:
            if self.boards:
                getattr(self.boards[split], method)(tag, value, step)
        except OSError as error:
            self.boards = {}
            self.message(f"cannot write to TensorBoard: {reason(error)}; {METRICS} keeps the scalars")

    def message(self, line: str) -> None:
        """Print a line above the progress bar, wrapped between words on a terminal, and keep it in `log.txt`."""
        self._print(word_wrapped(escape(line)))
        self._keep(line)

    def _print(self, text: str) -> None:
        if not self.is_silent:
            tqdm.write(f"{text}\n", file=STDERR, end="")

    def _keep(self, *lines: str) -> None:
        """Append lines to `log.txt`, or leave that to a later call if the run is not open yet."""
        self.printed += map(escape, lines)
        if self.run is None or self.lines is None:
            return
        kept, self.printed = self.printed, []
        try:
            with open(self.run / LOG, "a", encoding="utf-8", newline="\n") as file:
                file.writelines(f"{line}\n" for line in kept)
        except OSError as error:
            if self.keeps_log:
                self.keeps_log = False
                self._print(f"cannot write {self.run / LOG}: {reason(error)}")

    def progress(self, step: int, steps: int, losses: Mapping[str, float | None], activity: str) -> None:
        """Move the progress bar to `step` of `steps`, with `losses` and `activity`.

        `activity` is the throughput, or what the run does between steps, such as evaluating. Without a terminal or a
        notebook, print a line from time to time. `log.txt` always gets this line.
        """
        if self.is_silent:
            return
        has_bar, now = sys.stderr.isatty() or "ipykernel" in sys.modules, time.monotonic()
        if has_bar:
            if self.bar is None:
                style = BAR.format(width=len(str(steps)))
                self.bar = tqdm(initial=step, total=steps, file=STDERR, dynamic_ncols=True, bar_format=style)
            fields = (f"{name} {loss:.2f}" if loss is not None else "" for name, loss in losses.items())
            status = f"{' '.join(f'{field:9}' for field in fields)}{activity:>10}"
            is_new = status != self.bar.desc
            self.bar.set_description_str(status, refresh=False)
            self.bar.update(step - self.bar.n)  # shows it ten times per second at most
            if is_new:
                self.bar.refresh()
        if self.timed is None and step > self.first_step:
            self.timed = step, now  # the first step may have compiled the network
        if self.timed and now >= self.noted + PAUSE and step > self.timed[0]:
            self.noted = now
            left = tqdm.format_interval((now - self.timed[1]) / (step - self.timed[0]) * (steps - step))
            numbers = [f"{name} {loss:.4f}" for name, loss in losses.items() if loss is not None]
            shown = ", ".join(filter(None, (*numbers, activity, f"{left} left")))
            shown = shown.replace("val ", "validation ").replace("/s", " characters/s")
            line = f"{time.strftime('%H:%M:%S')} step {step} of {steps}: {shown}"
            self._keep(line) if has_bar else self.message(line)

    def flush(self) -> None:
        """Flush metrics.jsonl and TensorBoard. Call this before a checkpoint claims that its steps are logged."""
        with suppress(OSError):  # the next call of `log` reports it
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
            is_whole = line.endswith(b"\n") and b"\0" not in line  # a power loss may leave zeros
            size = end if is_whole else size
    return size
