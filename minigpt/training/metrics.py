"""Where a run reports to: `metrics.jsonl`, TensorBoard, and the terminal."""

import json
import math
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

from minigpt.errors import escape, reason
from minigpt.files import sync, write_atomically
from minigpt.training.signals import ignore_broken_stderr

LAYOUT = {"loss": {"training and validation": ["Multiline", ["loss/train", "loss/validation"]]}}
"""One chart with both losses, on TensorBoard's Custom Scalars page."""
FLUSH_SECONDS = 10
BAR = "{percentage:3.0f}%|{bar}| {n:.0f}/{total:.0f} {unit}s [{elapsed}<{remaining}]{postfix}"


class Metrics:
    """Report what happens in a run. Without a run folder, report nothing.

    A resumed run first removes what was written after its step, so each curve has each step once. A disk that
    refuses to write does not end training: lines of `metrics.jsonl` wait in memory, TensorBoard's curves end.
    """

    def __init__(self, run: Path | None = None, step: int = 0) -> None:
        self.is_silent = run is None
        self.board: SummaryWriter | None = None
        self.bar: tqdm[Any] | None = None
        self.unwritten, self.is_failing = b"", False
        if run is None:
            return
        self.path, self.folder = run / "metrics.jsonl", run / "tensorboard"
        remove_lines_after(self.path, step)
        self.lines = open(self.path, "ab", buffering=0)  # noqa: SIM115 - closed by close()
        threading.excepthook = _ignore_disk_errors
        is_new = not self.folder.exists()
        # TensorBoard drops the events that older files hold from purge_step on.
        self.board = SummaryWriter(str(self.folder), purge_step=step + 1, flush_secs=FLUSH_SECONDS)
        if is_new:
            self._to_board("add_custom_scalars", LAYOUT)

    def log(self, step: int, seconds: float, scalars: Mapping[str, float]) -> None:
        """Write scalars by tag to `metrics.jsonl` and TensorBoard. `seconds` is the age of the run."""
        numbers = {tag: value if math.isfinite(value) else None for tag, value in scalars.items()}  # JSON has no NaN
        self._append(json.dumps({"step": step, "time": round(seconds, 3), **numbers}) + "\n")
        self.scalars(step, scalars)

    def scalars(self, step: int, scalars: Mapping[str, float]) -> None:
        """Write scalars by tag to TensorBoard only."""
        for tag, value in scalars.items():
            self._to_board("add_scalar", tag, value, step)

    def image(self, step: int, tag: str, pixels: NDArray[np.uint8]) -> None:
        """Write an image (height, width, 3) to TensorBoard."""
        self._to_board("add_image", tag, pixels, step, dataformats="HWC")

    def text(self, step: int, tag: str, text: str) -> None:
        """Write a text to TensorBoard, shown as it is and not as Markdown."""
        indented = "\n".join(f"    {line}" for line in text.splitlines())
        self._to_board("add_text", tag, indented, step)

    def histograms(self, step: int, tensors: Mapping[str, Tensor]) -> None:
        """Write a histogram of each tensor to TensorBoard."""
        for tag, tensor in tensors.items():
            self._to_board("add_histogram", tag, tensor.float(), step)

    def embedding(self, name: str, vectors: Tensor, labels: Sequence[str]) -> None:
        """Write vectors (N, C) with a label each to TensorBoard's projector. They replace earlier ones."""
        rows = "\n".join("\t".join(f"{number:.6g}" for number in row) for row in vectors.tolist())
        entry = f'embeddings {{ tensor_name: "{name}" tensor_path: "vectors.tsv" metadata_path: "labels.tsv" }}'
        files = {"vectors.tsv": rows, "labels.tsv": "\n".join(map(escape, labels)), "projector_config.pbtxt": entry}
        try:
            for file, content in files.items() if self.board else ():
                write_atomically(self.folder / file, content + "\n")
        except OSError as error:
            self.message(f"cannot write {name} for TensorBoard's projector: {reason(error)}")

    def hparams(self, settings: Mapping[str, Any], losses: Mapping[str, float | None]) -> None:
        """Write the settings and final losses of the run to TensorBoard's HParams page."""
        plain = {key: value if isinstance(value, int | float | bool) else str(value) for key, value in settings.items()}
        results = {f"hparam/{name}": math.nan if loss is None else loss for name, loss in losses.items()}
        self._to_board("add_hparams", plain, results, run_name=".")

    def progress(self, position: float, total: float, unit: str, state: str) -> None:
        """Move the progress bar to `position` of `total` `unit`s, and show `state` beside it."""
        if self.is_silent or not sys.stderr.isatty():
            return
        with ignore_broken_stderr():
            if self.bar is None:
                self.bar = tqdm(
                    initial=position, total=total, unit=unit, file=sys.stderr, dynamic_ncols=True, bar_format=BAR
                )
            self.bar.set_postfix_str(state, refresh=False)
            self.bar.n = position
            self.bar.refresh()

    def message(self, line: str) -> None:
        """Print a line on the terminal, above the progress bar."""
        if not self.is_silent:
            with ignore_broken_stderr():
                tqdm.write(escape(line), file=sys.stderr)

    def flush(self) -> None:
        """Write what is pending to disk. Call it before a checkpoint claims that its steps are logged."""
        self._to_board("flush")
        if not self.is_silent:
            self._append("")
            try:
                sync(self.lines.fileno())
            except OSError as error:
                self._complain(error)

    def close(self) -> None:
        """Write what is pending and close the files."""
        if not self.is_silent and self.lines.closed:
            return
        self.flush()
        self._to_board("close")
        if self.bar is not None:
            with ignore_broken_stderr():
                self.bar.close()
        if not self.is_silent:
            threading.excepthook = threading.__excepthook__
            if self.unwritten:
                self.message(
                    f"lost the last {len(self.unwritten):,} bytes of {escape(self.path)}: the disk refused them"
                )
            self.lines.close()

    def __enter__(self) -> "Metrics":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _to_board(self, method: str, *arguments: Any, **options: Any) -> None:
        """Call a method of the board. If the disk refuses, go on without TensorBoard."""
        try:
            if self.board is not None:
                getattr(self.board, method)(*arguments, **options)
        except OSError as error:
            self.board = None
            self.message(f"cannot write TensorBoard's curves: {reason(error)}; metrics.jsonl keeps the scalars")

    def _append(self, line: str) -> None:
        """Write a line at once. What the disk refuses waits for the next call."""
        if self.is_silent:
            return
        self.unwritten += line.encode()
        try:
            while self.unwritten:
                self.unwritten = self.unwritten[self.lines.write(self.unwritten) :]
        except OSError as error:
            self._complain(error)
            return
        if self.is_failing:
            self.message(f"{escape(self.path)} is written again; nothing is lost")
        self.is_failing = False

    def _complain(self, error: OSError) -> None:
        if not self.is_failing:
            self.message(f"cannot write {escape(self.path)}: {reason(error)}; keeping the lines in memory")
        self.is_failing = True


def remove_lines_after(path: Path, step: int) -> None:
    """Remove the last lines of `metrics.jsonl` that are later than `step` or damaged."""
    if not path.exists():
        return
    lines = path.read_bytes().splitlines(keepends=True)
    while lines and not _is_line_up_to(step, lines[-1]):
        lines.pop()
    os.truncate(path, sum(map(len, lines)))


def _is_line_up_to(step: int, line: bytes) -> bool:
    try:
        return line.endswith(b"\n") and bool(json.loads(line)["step"] <= step)
    except (ValueError, KeyError, TypeError, RecursionError):
        return False


def _ignore_disk_errors(thread: threading.ExceptHookArgs) -> None:
    """Print no traceback of the board's thread when the disk is full: the next write raises that error here."""
    if not issubclass(thread.exc_type, OSError):
        threading.__excepthook__(thread)
