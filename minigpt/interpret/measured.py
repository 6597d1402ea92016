"""Measure a run at its best checkpoint, and read the curves of its training."""

import json
import math
import os
import statistics
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minigpt.config.resolve import decisive, flatten, show
from minigpt.config.schema import SampleConfig
from minigpt.errors import CheckpointError, TextMismatchError, UserError, count, escape
from minigpt.files import open_within
from minigpt.interpret.gradient import gradient_by_distance, spread_windows
from minigpt.model.device import Runtime, configure_torch
from minigpt.model.gpt import use_kernels
from minigpt.model.load import load_model
from minigpt.paths import CHECKPOINTS
from minigpt.sampling.generate import generate_ids
from minigpt.sampling.load import build_engine
from minigpt.storage.checkpoint import Checkpoint, load_checkpoint
from minigpt.storage.metadata import Metadata
from minigpt.text.dataset import TokenDataset, reload_dataset
from minigpt.training.evaluate import EvalResult, evaluate

Array = NDArray[np.float64]

GRADIENT_WINDOWS = 256
LONGEST_LINE = 1 << 20
"""The most to read of a line of metrics.jsonl, in bytes. The file may come from a stranger."""
SAMPLE_SECONDS, WARM_UP = 0.5, 16
"""How long to measure sampling, and the number of tokens to sample before that."""


@dataclass(frozen=True)
class Curve:
    """The evaluations of a run during training, (N,) each."""

    steps: Array
    seconds: Array
    loss: Array
    """Validation loss, in nats per token."""
    characters_per_second: float | None
    """The median throughput of training."""


@dataclass(frozen=True)
class Measured:
    """A run and what was measured on its checkpoint."""

    name: str
    checkpoint: Path
    metadata: Metadata
    settings: dict[str, Any]
    """The decisive settings by dotted key."""
    result: EvalResult
    curve: Curve
    gradient: Array
    """The norm of the gradient by distance, (context,), as `gradient_by_distance` returns it. Empty if not measured."""
    sampled_per_second: float
    """Sampling throughput of one sequence on this machine, in characters per second of processor time."""

    @property
    def text(self) -> tuple[str, str]:
        """What decides the validation text: the text, and where it is split."""
        split = "" if "+" in self.metadata.fingerprint else show(self.settings["data.val_fraction"])
        skipped = " without unknown characters" if self.settings["data.unknown"] == "skip" else ""
        return self.metadata.fingerprint, split + skipped

    @property
    def machine(self) -> str:
        """What training times depend on, beside the settings."""
        runtime = self.metadata.runtime
        return ", ".join(filter(None, (runtime.device, count(runtime.threads, "thread"), runtime.processor)))

    @property
    def trained(self) -> tuple[float, float]:
        """The steps and the seconds of training, up to the last evaluation."""
        if len(self.curve.steps):
            return float(self.curve.steps[-1]), float(self.curve.seconds[-1])
        return self.metadata.step, self.metadata.state.seconds

    @property
    def bits_per_nat(self) -> float:
        """The factor from nats per token to bits per character, on the validation text. NaN if the loss is zero."""
        return self.result.bits_per_character / self.result.loss if self.result.loss else math.nan


def load_runs(names: Sequence[str]) -> dict[str, Checkpoint]:
    """Load the best checkpoint of each run, or the checkpoint that a name is the folder of. Skip repeated runs.

    Return the checkpoints by the name to show: the run's name, or as given if two runs have the same name.

    Raises:
        UserError: A run or its checkpoint is missing or damaged.
    """
    loaded: dict[Path, tuple[str, Checkpoint]] = {}
    for name in names:
        checkpoint = load_checkpoint(name)
        loaded.setdefault(Path(os.path.realpath(checkpoint.path)), (name, checkpoint))
    runs = {name: _run_folder(checkpoint.path) for name, checkpoint in loaded.values()}
    shown = [(run or Path(os.path.abspath(name))).name for name, run in runs.items()]
    return {
        short if shown.count(short) == 1 else name: checkpoint
        for (name, checkpoint), short in zip(loaded.values(), shown, strict=True)
    }


def _run_folder(checkpoint: Path) -> Path | None:
    """Return the run that a checkpoint is in, or None if it was copied."""
    folder = Path(os.path.abspath(checkpoint)).parent
    return folder.parent if folder.name == CHECKPOINTS else None


def measure(name: str, checkpoint: Checkpoint, runtime: Runtime, with_gradient: bool = True) -> Measured:
    """Evaluate a checkpoint on the validation text of its run, and read the curves of its training.

    Raises:
        TextMismatchError: The text of the run is missing or has changed.
        CheckpointError: The loss is not finite.
    """
    config, metadata = checkpoint.config, checkpoint.metadata
    try:
        data = reload_dataset(config.data, metadata.fingerprint, checkpoint.tokenizer, metadata.characters)
    except TextMismatchError as error:
        raise TextMismatchError(f"{escape(name)}: {error}") from error
    configure_torch(runtime)
    model = load_model(checkpoint).to(runtime.device)
    use_kernels(model, runtime.model_kernels)
    result = evaluate(model, data.validation, data.tokenizer, by_position=True, autocast=runtime.autocast)
    if not np.isfinite(result.loss):
        raise CheckpointError(f"{escape(name)}: the loss is {result.loss:g}; an earlier checkpoint may work")
    windows = spread_windows(data.validation, config.model.context, GRADIENT_WINDOWS if with_gradient else 0)
    return Measured(
        name=name,
        checkpoint=checkpoint.path,
        metadata=metadata,
        settings=decisive(flatten(config)),
        result=result,
        curve=read_curve(_run_folder(checkpoint.path)),
        gradient=gradient_by_distance(model, windows).numpy() if len(windows) else np.empty(0),
        sampled_per_second=_sampling_speed(checkpoint, data),
    )


def read_curve(run: Path | None) -> Curve:
    """Read the evaluations and the throughput of a run from its metrics.jsonl. Skip lines that are damaged."""
    points: list[tuple[float, float, float]] = []
    speeds: list[float] = []
    with suppress(UserError, OSError):
        if run is not None:
            with open_within(run / "metrics.jsonl", run) as file:
                while line := file.readline(LONGEST_LINE):
                    entry = _numbers(line)
                    if {"step", "time", "loss/validation"} <= entry.keys():
                        points.append((entry["step"], entry["time"], entry["loss/validation"]))
                    if "speed/characters_per_second" in entry:
                        speeds.append(entry["speed/characters_per_second"])
    steps, seconds, loss = np.array(sorted(points), dtype=np.float64).reshape(-1, 3).T
    return Curve(steps, seconds, loss, statistics.median(speeds) if speeds else None)


def _numbers(line: bytes) -> dict[str, float]:
    """Return the finite numbers of a line of JSON by key, or none if it is damaged."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(entry, dict):
        return {}
    numbers = {key: value for key, value in entry.items() if type(value) in (int, float)}  # True is an int
    return {key: float(value) for key, value in numbers.items() if abs(value) < 1e300}


def _sampling_speed(checkpoint: Checkpoint, data: TokenDataset) -> float:
    """Sample one sequence for half a second, and return the throughput in characters/s.

    The clock is the processor time of this thread, so other programs hardly change the result.
    """
    engine = build_engine(checkpoint.config.model, checkpoint.weights)
    steps = generate_ids(engine, np.zeros(1, dtype=np.int64), SampleConfig(length=1_000_000))
    for _ in range(WARM_UP):
        next(steps)
    started, count = time.thread_time(), 0
    while (elapsed := time.thread_time() - started) < SAMPLE_SECONDS and next(steps, None):
        count += 1
    return count * data.characters_per_token / elapsed
