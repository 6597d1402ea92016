"""What a run tells about itself: TensorBoard, metrics.jsonl, and the terminal."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from torch import Tensor
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

from minigpt.runs import write_atomically

LAYOUT = {"loss": {"training and validation": ["Multiline", ["loss/train", "loss/validation"]]}}
"""One chart in TensorBoard's Custom Scalars with both curves."""


class Metrics:
    """Writes the curves of one run. On resume, what was written after `step` is taken back first."""

    def __init__(self, run: Path, step: int, total: float, unit: str = "step") -> None:
        """Open the logs of `run` at `step`; `total` is the length of the run in `unit`s, for the progress bar."""
        self.path = run / "metrics.jsonl"
        self._take_back(step)
        self.lines = open(self.path, "a", encoding="utf-8", newline="\n")  # noqa: SIM115 - closed by close()
        # TensorBoard drops what older event files hold from purge_step on, so each tag has each step once.
        self.board = SummaryWriter(str(run / "tensorboard"), purge_step=step + 1 if step else None, flush_secs=10)
        if not step:
            self.board.add_custom_scalars(LAYOUT)
        self.bar = tqdm(
            total=total,
            unit=unit,
            file=sys.stderr,
            disable=None if sys.stderr is not None and sys.stderr.isatty() else True,
            dynamic_ncols=True,
            bar_format="{percentage:3.0f}%|{bar}| {n:.0f}/{total:.0f} {unit}s{postfix} [{elapsed}<{remaining}]",
        )

    def log(self, step: int, time: float, scalars: Mapping[str, float]) -> None:
        """Write `scalars` by tag at `step`; `time` is the run's age in seconds."""
        line = {"step": step, "time": round(time, 3), **scalars}
        self.lines.write(json.dumps(line) + "\n")
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

    def hparams(self, settings: Mapping[str, Any], results: Mapping[str, float]) -> None:
        """Write the run's settings and final results to TensorBoard's hyper-parameter table."""
        plain = {key: value if isinstance(value, int | float | bool) else str(value) for key, value in settings.items()}
        self.board.add_hparams(plain, dict(results), run_name=".")

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
        """Drop the lines after `step`, and a line that a kill cut off."""
        if not self.path.exists():
            return
        kept = []
        for line in self.path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                if json.loads(line)["step"] <= step:
                    kept.append(line)
            except (ValueError, KeyError, TypeError):
                self.say(f"{self.path}: dropped a damaged line, cut off when the run was killed")
        write_atomically(self.path, "".join(f"{line}\n" for line in kept))
