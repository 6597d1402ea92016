"""Compare runs: measure each at its best checkpoint, group the seeds of one setting, and rank what is comparable."""

import json
import math
import os
import re
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal

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
Measure = Literal["loss", "bits_per_character"]

GRADIENT_WINDOWS = 256
LONGEST_LINE = 1 << 20
"""The most to read of a line of metrics.jsonl, in bytes. The file may come from a stranger."""
ALIKE = 1.1
"""Sizes, training times and steps that differ by a smaller factor count as equal."""
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


# --- measure -----------------------------------------------------------------------------------------


def load_runs(names: Sequence[str]) -> dict[str, Checkpoint]:
    """Load the best checkpoint of each run, or the checkpoint that a name is the folder of. Skip repeated runs.

    Return the checkpoints by the name to show: that of the run, or as given if two runs have the same name.

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
    config = checkpoint.config
    try:
        data = reload_dataset(config.data, checkpoint.metadata.fingerprint, checkpoint.tokenizer)
    except TextMismatchError as error:
        raise TextMismatchError(f"{escape(name)}: {error}") from error
    configure_torch(runtime)
    model = load_model(checkpoint).to(runtime.device)
    use_kernels(model, runtime.model_kernels)
    result = evaluate(model, data.validation, data.tokenizer, by_position=True, autocast=runtime.autocast)
    if not np.isfinite(result.loss):
        raise CheckpointError(f"{escape(name)}: the loss is {result.loss:g}; an earlier checkpoint may work")
    gradient = np.empty(0)
    if with_gradient:
        windows = spread_windows(data.validation, config.model.context, GRADIENT_WINDOWS)
        gradient = gradient_by_distance(model, windows).numpy() if len(windows) else gradient
    return Measured(
        name=name,
        checkpoint=checkpoint.path,
        metadata=checkpoint.metadata,
        settings=decisive(flatten(config)),
        result=result,
        curve=read_curve(_run_folder(checkpoint.path)),
        gradient=gradient,
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
                    speeds += [entry[key] for key in ("speed/characters_per_second",) if key in entry]
    steps, seconds, loss = np.array(sorted(points), dtype=np.float64).reshape(-1, 3).T
    return Curve(steps, seconds, loss, statistics.median(speeds) if speeds else None)


def _numbers(line: bytes) -> dict[str, float]:
    """Return the finite numbers of a line of JSON by key, or none if it is damaged."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    numbers = {key: value for key, value in entry.items() if type(value) in (int, float)} if type(entry) is dict else {}
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


# --- group and rank ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Group:
    """Runs of one text, whose decisive settings differ only in the seed."""

    name: str
    runs: tuple[Measured, ...]

    @property
    def label(self) -> str:
        """The name, with the number of seeds if there are several."""
        return f"{self.name}, {len(self.runs)} seeds" if len(self.runs) > 1 else self.name

    @property
    def machines(self) -> set[str]:
        return {run.machine for run in self.runs}

    def mean(self, value: Callable[[Measured], float | None]) -> float | None:
        """Return the mean of a value over the runs that have it."""
        found = [number for number in map(value, self.runs) if number is not None]
        return statistics.fmean(found) if found else None

    def error(self, value: Callable[[Measured], float]) -> float | None:
        """Return the standard error of the mean, or None for a single seed."""
        if len(self.runs) == 1:
            return None
        return float(statistics.stdev(map(value, self.runs)) / len(self.runs) ** 0.5)


@dataclass(frozen=True)
class Comparison:
    """Groups of runs, the best first if they are ranked, else in the order given."""

    groups: tuple[Group, ...]
    unit: Measure
    """The unit in which losses are comparable if the texts are the same."""
    is_ranked: bool
    notes: tuple[str, ...]
    """What to know before comparing: one sentence each."""


def compare(runs: Sequence[Measured]) -> Comparison:
    """Group the seeds of one setting. Rank the groups if all have the same validation text.

    Losses per byte and per character are different units, so with different tokenizers, bits per character decide.
    """
    found: dict[tuple[str, int], list[Measured]] = {}
    times = Counter[tuple[str, int]]()  # how often a seed was there before
    for run in runs:
        origin = run.metadata.origin and run.metadata.origin.sha256
        setting = json.dumps({**run.settings, "train.seed": None, "text": run.text, "from": origin}, sort_keys=True)
        seed = setting, run.settings["train.seed"]
        found.setdefault((setting, times[seed]), []).append(run)
        times[seed] += 1
    names = [_common_name([run.name for run in members]) for members in found.values()]
    groups = [
        Group(name if names.count(name) == 1 else ", ".join(run.name for run in members), tuple(members))
        for name, members in zip(names, found.values(), strict=True)
    ]
    unit: Measure = "loss" if len({run.settings["data.tokenizer"] for run in runs}) == 1 else "bits_per_character"
    is_ranked = len({run.text for run in runs}) == 1
    if is_ranked:
        groups.sort(key=lambda group: group.mean(lambda run: getattr(run.result, unit)) or 0.0)
    return Comparison(tuple(groups), unit, is_ranked and len(groups) > 1, tuple(_notes(groups)))


def _common_name(names: Sequence[str]) -> str:
    """Return the start that the names share, without a number at its end, or all names if they share nothing."""
    if len(names) == 1:
        return names[0]
    shared = takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False))
    return re.sub(r"[\W_]*\d*$", "", "".join(letters[0] for letters in shared)) or ", ".join(names)


def _notes(groups: Sequence[Group]) -> Iterator[str]:
    runs = [run for group in groups for run in group.runs]

    def listed(value: Callable[[Measured], object]) -> str:
        """Return each distinct value with its groups, or "" if there is only one."""
        by_value: dict[str, dict[str, None]] = {}
        for group in groups:
            for run in group.runs:
                by_value.setdefault(escape(value(run)), {})[group.name] = None
        return "; ".join(f"{key}: {', '.join(those)}" for key, those in by_value.items()) if len(by_value) > 1 else ""

    if len({run.text[0] for run in runs}) > 1:
        corpora = listed(lambda run: run.metadata.corpus) or "of the same name, with different content"
        yield f"not ranked, because the texts differ ({corpora})"
    elif splits := listed(lambda run: run.text[1]):
        yield f"not ranked, because the validation parts differ (data.val_fraction {splits})"
    if tokenizers := listed(lambda run: run.settings["data.tokenizer"]):
        yield f"the tokenizers differ ({tokenizers}), so compare bits per character, not losses in nats"
        if sizes := listed(lambda run: f"{run.result.characters:,} characters"):  # bytes are split at another place
            yield f"their validation parts differ in length ({sizes})"
    machines = listed(lambda run: run.machine)
    amounts: tuple[tuple[str, str, Callable[[Measured], float]], ...] = (
        ("sizes", "parameters", lambda run: run.metadata.parameters),
        ("training times", "s", lambda run: 0 if machines else run.trained[1]),
        ("lengths of training", "steps", lambda run: run.trained[0]),
    )
    for noun, unit, value in amounts:
        means = {group.name: group.mean(value) or 0.0 for group in groups}
        least = min(means.values())
        if max(means.values()) > max(least * ALIKE, least + 1):
            shown = "; ".join(f"{mean:,.0f} {unit}: {escape(name)}" for name, mean in means.items())
            yield f"the {noun} differ ({shown}), which also changes the loss"
    if contexts := listed(lambda run: run.settings["model.context"]):
        yield f"the contexts differ ({contexts}), so the losses are measured on different windows"
    if steps := listed(lambda run: f"{run.settings['train.batch_size'] * run.settings['model.context']:,} tokens"):
        yield f"a step reads different amounts of text ({steps}), so compare the curves by time"
    if dtypes := listed(lambda run: run.metadata.runtime.dtype):
        yield f"the runs were trained in different precisions ({dtypes})"
    if machines:
        yield f"do not compare training times, because the machines or threads differ ({machines})"
    for group in groups:
        ends = {run.name: int(run.curve.steps[-1]) for run in group.runs if len(run.curve.steps)}
        if len({*ends.values()}) > 1 and group.runs[0].settings["train.minutes"] is None:
            steps = ", ".join(f"{name} to step {end:,}" for name, end in ends.items())
            yield f"the seeds of {group.name} were not trained equally long ({steps})"
    if short := [run.name for run in runs if not run.result.by_position]:
        yield f"no loss by position for {', '.join(short)}: the validation text is shorter than one window"
    if without := [run.name for run in runs if not len(run.curve.steps)]:
        yield f"no training curves for {', '.join(without)}: metrics.jsonl is missing or has no evaluation"


# --- export ------------------------------------------------------------------------------------------


def document(comparison: Comparison) -> dict[str, Any]:
    """Return a comparison as a JSON document: a row per group, and everything measured for each run."""
    return {
        "ranked_by": comparison.unit if comparison.is_ranked else None,
        "notes": list(comparison.notes),
        "groups": [
            {
                "name": group.name,
                "seeds": len(group.runs),
                "loss": group.mean(lambda run: run.result.loss),
                "loss_standard_error": group.error(lambda run: run.result.loss),
                "bits_per_character": group.mean(lambda run: run.result.bits_per_character),
                "bits_per_character_standard_error": group.error(lambda run: run.result.bits_per_character),
                "runs": [_run_document(run) for run in group.runs],
            }
            for group in comparison.groups
        ],
    }


def _run_document(run: Measured) -> dict[str, Any]:
    state = run.metadata.state
    return {
        "name": run.name,
        "checkpoint": escape(run.checkpoint),
        "family": run.settings["model.family"],
        "seed": run.settings["train.seed"],
        "context": run.settings["model.context"],
        "tokenizer": run.settings["data.tokenizer"],
        "text": run.metadata.corpus,
        "parameters": run.metadata.parameters,
        "steps": state.step,
        "seconds": state.seconds,
        "machine": run.machine,
        "loss": run.result.loss,
        "bits_per_character": run.result.bits_per_character,
        "training_characters_per_second": run.curve.characters_per_second,
        "sampling_characters_per_second": run.sampled_per_second,
        "curve": {name: getattr(run.curve, name).tolist() for name in ("steps", "seconds", "loss")},
        "loss_by_position": list(run.result.by_position),
        "gradient_by_distance": [value if np.isfinite(value) else None for value in run.gradient.tolist()],
    }
