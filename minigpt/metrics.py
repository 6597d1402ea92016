"""What a run tells about itself: TensorBoard, metrics.jsonl, and the terminal."""

import json
import math
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from torch import Tensor
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

LAYOUT = {"loss": {"training and validation": ["Multiline", ["loss/train", "loss/validation"]]}}
"""One chart in TensorBoard's Custom Scalars with both curves."""


class Metrics:
    """Writes the curves of one run. On resume, what was written after `step` is taken back first."""

    def __init__(self, run: Path, step: int, position: float, total: float, unit: str = "step") -> None:
        """Open the logs of `run` at `step`; the progress bar starts at `position` of `total` `unit`s."""
        self.path = run / "metrics.jsonl"
        self._take_back(step)
        self.lines = open(self.path, "a", encoding="utf-8", newline="\n")  # noqa: SIM115 - closed by close()
        # TensorBoard drops what older event files hold from purge_step on, so each tag has each step once.
        events = run / "tensorboard"
        is_new = not events.exists()
        self.board = SummaryWriter(str(events), purge_step=step + 1, flush_secs=10)
        if is_new:
            self.board.add_custom_scalars(LAYOUT)
        self.bar = tqdm(
            initial=position,
            total=total,
            unit=unit,
            file=sys.stderr,
            disable=not sys.stderr.isatty(),
            dynamic_ncols=True,
            bar_format="{percentage:3.0f}%|{bar}| {n:.0f}/{total:.0f} {unit}s{postfix} [{elapsed}<{remaining}]",
        )

    def log(self, step: int, time: float, scalars: Mapping[str, float]) -> None:
        """Write `scalars` by tag at `step`; `time` is the run's age in seconds."""
        numbers = {tag: value if math.isfinite(value) else None for tag, value in scalars.items()}  # JSON has no NaN
        self.lines.write(json.dumps({"step": step, "time": round(time, 3), **numbers}) + "\n")
        self.lines.flush()
        for tag, value in scalars.items():
            self.board.add_scalar(tag, value, step)

    def text(self, step: int, tag: str, text: str) -> None:
        """Write a text to TensorBoard, shown as it is and not as Markdown."""
        indented = "\n".join(f"    {line}" for line in text.splitlines())
        self.board.add_text(tag, indented, step)

    def histograms(self, step: int, tensors: Mapping[str, Tensor]) -> None:
        """Write a histogram for each tensor to TensorBoard."""
        for tag, tensor in tensors.items():
            self.board.add_histogram(tag, tensor.float(), step)

    def hparams(self, step: int, settings: Mapping[str, Any], losses: Mapping[str, float | None]) -> None:
        """Write the run's settings and how it ended to TensorBoard's hyper-parameter table."""
        plain = {key: value if isinstance(value, int | float | bool) else str(value) for key, value in settings.items()}
        results = {f"hparam/{name}": math.nan if loss is None else loss for name, loss in losses.items()}
        self.board.add_hparams(plain, results, run_name=".", global_step=step)

    def progress(self, position: float, state: str) -> None:
        """Move the progress bar to `position`, with `state` beside it."""
        self.bar.set_postfix_str(state, refresh=False)
        self.bar.update(position - self.bar.n)

    def say(self, line: str) -> None:
        """Print a line for the person at the terminal, above the progress bar."""
        tqdm.write(line, file=sys.stderr)

    def flush(self) -> None:
        """Make sure that what was logged is on its way to disk, before a checkpoint claims that step."""
        self.lines.flush()
        self.board.flush()

    def close(self) -> None:
        """Write out everything and close the files."""
        self.bar.close()
        self.board.close()
        self.lines.close()

    def __enter__(self) -> "Metrics":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _take_back(self, step: int) -> None:
        """Cut off the lines after `step`, and what a kill left of a line, from the end of the file."""
        if not self.path.exists():
            return
        content = self.path.read_bytes()
        end = len(content)
        while end and not _is_line_up_to(step, content[content.rfind(b"\n", 0, end - 1) + 1 : end]):
            end = content.rfind(b"\n", 0, end - 1) + 1
        os.truncate(self.path, end)


def _is_line_up_to(step: int, line: bytes) -> bool:
    """Return whether `line` is whole and tells of this step or an earlier one."""
    try:
        return line.endswith(b"\n") and bool(json.loads(line)["step"] <= step)
    except (ValueError, KeyError, TypeError):
        return False
