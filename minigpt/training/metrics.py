"""What a run tells about itself: TensorBoard, metrics.jsonl, and the terminal."""

import io
import json
import math
import os
import platform
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter
from torch import Tensor
from torch.utils.tensorboard import summary
from tqdm import tqdm

from minigpt.errors import escape, reason
from minigpt.files import make_folders, read_within, sync, sync_folder, write_atomically
from minigpt.training.signals import ignore_broken_stderr

LAYOUT = {"loss": {"training and validation": ["Multiline", ["loss/train", "loss/validation"]]}}
"""One chart in TensorBoard's Custom Scalars with both curves."""
BINS = np.concatenate((-np.geomspace(1e20, 1e-12, 771), [0.0], np.geomspace(1e-12, 1e20, 771)))
"""Edges of the bins of a histogram, each a tenth further from zero than the one before."""

CURVES_LIMIT = 1 << 30
"""Bytes that metrics.jsonl can have at most when it is gone on with: some million lines."""


class Journal:
    """A file that only grows. What the disk refuses is kept in memory and written once it gives way."""

    def __init__(self, path: Path, say: Callable[[str], None]) -> None:
        self.path, self.say = path, say
        self.file = open(path, "ab", buffering=0)  # noqa: SIM115 - closed by close()
        self.size, self.pending, self.failing = self.file.tell(), b"", False

    def append(self, records: bytes) -> None:
        """Write whole records: when this returns they would survive the end of the process, or are pending."""
        self.pending += records
        written = 0
        try:
            if self.failing:
                self.file.truncate(self.size)  # what got through of the records that did not
            while written < len(self.pending):
                written += self.file.write(self.pending[written:])
        except OSError as error:
            with suppress(OSError):  # tried again before the next write
                self.file.truncate(self.size)
            self._complain(error)
            return
        self.size, self.pending = self.size + written, b""
        if self.failing:
            self.say(f"{escape(self.path)} is written again; nothing was left out")
        self.failing = False

    def sync(self) -> None:
        """Wait until the disk has what was written."""
        if self.pending:
            self.append(b"")
        try:
            sync(self.file.fileno())
        except OSError as error:
            self._complain(error)

    def close(self) -> None:
        """Write what is pending if that is possible now, and close the file."""
        self.sync()
        if self.pending:
            self.say(f"the last {len(self.pending):,} bytes for {escape(self.path)} could not be written and are lost")
        with suppress(OSError):  # some systems report here again what failed above
            self.file.close()

    def _complain(self, error: OSError) -> None:
        if not self.failing:
            self.say(f"cannot write {escape(self.path)}: {reason(error)}; training goes on, this is kept in memory")
        self.failing = True


class Metrics:
    """Writes the curves of one run. On resume, what was written after `step` is taken back first."""

    def __init__(self, run: Path, step: int, position: float, total: float, unit: str = "step") -> None:
        """Open the logs of `run` at `step`; the progress bar starts at `position` of `total` `unit`s."""
        events = run / "tensorboard"
        is_new = not events.exists()
        make_folders(events)
        _take_back(run / "metrics.jsonl", step)
        self.lines = Journal(run / "metrics.jsonl", self.say)
        self.board = Journal(_next_event_file(events), self.say)
        try:  # or a power cut may take the new file's name
            sync_folder(events)
            sync_folder(run)
        except OSError as error:
            self.say(f"cannot flush {escape(events)}: {reason(error)}; training goes on")
        # TensorBoard drops what older event files hold from this step on, so each tag has each step once.
        self._event(Event(step=step + 1, file_version="brain.Event:2"))
        self._event(Event(step=step + 1, session_log=SessionLog(status=SessionLog.START)))
        if is_new:
            self._event(Event(summary=summary.custom_scalars(LAYOUT)))
        self.bar = tqdm(
            initial=position,
            total=total,
            unit=unit,
            file=sys.stderr,
            disable=not sys.stderr.isatty(),
            dynamic_ncols=True,
            bar_format="{percentage:3.0f}%|{bar}| {n:.0f}/{total:.0f} {unit}s [{elapsed}<{remaining}]{postfix}",
        )

    def log(self, step: int, time: float, scalars: Mapping[str, float]) -> None:
        """Write `scalars` by tag at `step`; `time` is the run's age in seconds."""
        numbers = {tag: value if math.isfinite(value) else None for tag, value in scalars.items()}  # JSON has no NaN
        line = json.dumps({"step": step, "time": round(time, 3), **numbers})
        self.lines.append(f"{line}\n".encode())
        self.scalars(step, scalars)

    def scalars(self, step: int, scalars: Mapping[str, float]) -> None:
        """Write `scalars` by tag to TensorBoard alone."""
        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
        self._event(Event(step=step, summary=Summary(value=values)))

    def image(self, step: int, tag: str, png: bytes, size: tuple[int, int]) -> None:
        """Write a picture of this width and height to TensorBoard."""
        image = Summary.Image(width=size[0], height=size[1], colorspace=3, encoded_image_string=png)
        self._event(Event(step=step, summary=Summary(value=[Summary.Value(tag=tag, image=image)])))

    def embedding(self, name: str, vectors: Tensor, labels: Sequence[str]) -> None:
        """Write vectors (N, C) and what each stands for to TensorBoard's projector, in place of those before.

        A line end in a label is escaped like any other unprintable character: each must be one line of a table.
        """
        rows = "\n".join("\t".join(f"{number:.6g}" for number in row) for row in vectors.tolist())
        entry = f'embeddings {{ tensor_name: "{name}" tensor_path: "vectors.tsv" metadata_path: "labels.tsv" }}'
        files = {"vectors.tsv": rows, "labels.tsv": "\n".join(map(escape, labels)), "projector_config.pbtxt": entry}
        try:
            for file, content in files.items():
                write_atomically(self.board.path.parent / file, content + "\n")
        except OSError as error:
            self.say(f"cannot write {name} for TensorBoard's projector: {reason(error)}; training goes on")

    def text(self, step: int, tag: str, text: str) -> None:
        """Write a text to TensorBoard, shown as it is and not as Markdown."""
        indented = "\n".join(f"    {line}" for line in text.splitlines())
        self._event(Event(step=step, summary=summary.text(tag, indented)))

    def histograms(self, step: int, tensors: Mapping[str, Tensor]) -> None:
        """Write a histogram for each tensor to TensorBoard."""
        for tag, tensor in tensors.items():
            self._event(Event(step=step, summary=summary.histogram(tag, tensor.float().cpu().numpy(), BINS)))

    def hparams(self, step: int, settings: Mapping[str, Any], losses: Mapping[str, float | None]) -> None:
        """Write the run's settings and how it ended to TensorBoard's hyper-parameter table."""
        plain = {key: value if isinstance(value, int | float | bool) else str(value) for key, value in settings.items()}
        results = {f"hparam/{name}": math.nan if loss is None else loss for name, loss in losses.items()}
        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in results.items()]
        for part in (*summary.hparams(plain, results), Summary(value=values)):
            self._event(Event(step=step, summary=part))

    def progress(self, position: float, state: str) -> None:
        """Move the progress bar to `position`, with `state` beside it, of which a narrow terminal cuts off the end."""
        with ignore_broken_stderr():
            self.bar.set_postfix_str(state, refresh=False)
            if not self.bar.update(position - self.bar.n):  # which draws it now and then
                self.bar.refresh()

    def say(self, line: str) -> None:
        """Print a line for the person at the terminal, above the progress bar."""
        with ignore_broken_stderr():
            tqdm.write(escape(line), file=sys.stderr)

    def sync(self) -> None:
        """Make sure that what was logged is on disk, before a checkpoint claims that step."""
        self.lines.sync()
        self.board.sync()

    def close(self) -> None:
        """Write out everything and close the files."""
        with ignore_broken_stderr():
            self.bar.close()
        self.board.close()
        self.lines.close()

    def __enter__(self) -> "Metrics":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _event(self, event: Event) -> None:
        event.wall_time = time.time()
        record = io.BytesIO()
        RecordWriter(record).write(event.SerializeToString())
        self.board.append(record.getvalue())


def _next_event_file(folder: Path) -> Path:
    """Return where the events of this process go.

    TensorBoard reads files in the order of their names, which hold a time: where the clock was set back, it
    is one second after the last.
    """
    names = [re.match(r"events\.out\.tfevents\.([0-9]{1,10})\.", path.name) for path in folder.glob("events*")]
    begin = max([int(time.time()), *(int(found[1]) + 1 for found in names if found)])
    return folder / f"events.out.tfevents.{begin:010d}.{platform.node()}.{os.getpid()}"


def _take_back(path: Path, step: int) -> None:
    """Cut off the lines of metrics.jsonl after `step`, and what a kill left of a line, from its end."""
    if not path.exists():
        return
    content = read_within(path, path.parent, CURVES_LIMIT)
    end = len(content)
    while end and not _is_line_up_to(step, content[content.rfind(b"\n", 0, end - 1) + 1 : end]):
        end = content.rfind(b"\n", 0, end - 1) + 1
    os.truncate(path, end)


def _is_line_up_to(step: int, line: bytes) -> bool:
    """Return whether `line` is whole and tells of this step or an earlier one."""
    try:
        return line.endswith(b"\n") and bool(json.loads(line)["step"] <= step)
    except (ValueError, KeyError, TypeError, RecursionError):
        return False
