"""Measure checkpoints of runs, group the runs that differ only in the seed, and rank the groups if comparable."""

import math
import statistics
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from minigpt.config.resolve import decisive, flatten, show
from minigpt.errors import CheckpointError, TextMismatchError, count, escape
from minigpt.model.device import Runtime, configure_torch
from minigpt.model.gpt import use_kernels
from minigpt.model.load import load_model
from minigpt.paths import run_of
from minigpt.storage.checkpoint import Checkpoint
from minigpt.storage.metadata import Metadata
from minigpt.storage.records import read_metrics
from minigpt.text.dataset import reload_dataset
from minigpt.training.evaluate import EvalResult, evaluate

Unit = Literal["loss", "bits_per_character"]


class Curve(NamedTuple):
    """The evaluations and the throughput of a run."""

    steps: Sequence[float] = ()
    seconds: Sequence[float] = ()
    loss: Sequence[float] = ()
    """Validation loss, in nats per token."""
    characters_per_second: float | None = None
    """The median of the logged throughputs."""


@dataclass(frozen=True)
class Measured:
    """A run and what was measured on its checkpoint."""

    name: str
    checkpoint: Path
    metadata: Metadata
    settings: dict[str, Any]
    """The settings that decide the result, by dotted key."""
    result: EvalResult
    curve: Curve

    @property
    def validation_text(self) -> tuple[str, str]:
        """The text, where it is split, and whether unknown characters are skipped."""
        split = "" if "+" in self.metadata.fingerprint else show(self.settings["data.val_fraction"])
        skipped = " without unknown characters" if self.settings["data.unknown"] == "skip" else ""
        return self.metadata.fingerprint, split + skipped

    @property
    def experiment(self) -> object:
        """What the runs of a group share."""
        origin = self.metadata.origin and self.metadata.origin.sha256
        return {**self.settings, "train.seed": None}, self.validation_text, origin

    @property
    def machine(self) -> str:
        """The device, threads and processor of the training."""
        runtime = self.metadata.runtime
        return ", ".join(filter(None, (runtime.device, count(runtime.threads, "thread"), runtime.processor)))


@dataclass(frozen=True)
class Group:
    """Runs of one text, whose decisive settings differ only in the seed."""

    runs: tuple[Measured, ...]

    @property
    def name(self) -> str:
        """The names of the runs."""
        return ", ".join(run.name for run in self.runs)

    def mean(self, value: Callable[[Measured], float]) -> float:
        """Return the mean of a value over the runs."""
        return statistics.fmean(map(value, self.runs))

    @property
    def characters_per_second(self) -> float | None:
        """The mean throughput of the runs whose throughput is known."""
        known = [speed for run in self.runs if (speed := run.curve.characters_per_second) is not None]
        return statistics.fmean(known) if known else None

    def error(self, value: Callable[[Measured], float]) -> float:
        """Return the standard error of the mean of a value over at least two runs."""
        return float(statistics.stdev(map(value, self.runs)) / len(self.runs) ** 0.5)


@dataclass(frozen=True)
class Comparison:
    """Groups of runs, the best first if they are ranked, else in the order given."""

    groups: tuple[Group, ...]
    unit: Unit
    """The unit in which losses are comparable if the texts are the same."""
    is_ranked: bool
    notes: tuple[str, ...]
    """What to know before comparing."""


DIFFERENCES: tuple[tuple[str, Callable[[Measured], object]], ...] = (
    (
        "the tokenizers differ ({}), so compare bits per character, not losses in nats",
        lambda run: run.settings["data.tokenizer"],
    ),
    (
        "the contexts differ ({}), so the losses are measured on different windows",
        lambda run: run.settings["model.context"],
    ),
    (
        "a step trains on different amounts of text ({})",
        lambda run: f"{run.settings['train.batch_size'] * run.settings['model.context']:,} tokens",
    ),
    ("the runs were trained in different precisions ({})", lambda run: run.metadata.runtime.dtype),
    ("do not compare training times, because the machines or threads differ ({})", lambda run: run.machine),
)
"""What can make a comparison unfair: a note, and a function that returns what differs."""


def read_points(run: Path, split: str, *names: str) -> list[list[float]]:
    """Return the values of `names` in each line of metrics.jsonl about a split.

    Lines that are damaged, or lack a finite number for a name, are skipped.
    """
    points = []
    for entry in read_metrics(run):
        with suppress(ValueError, TypeError, KeyError, OverflowError):
            point = [float(entry[name]) for name in names]
            if entry["split"] == split and all(map(math.isfinite, point)):
                points.append(point)
    return points


def compare(runs: Sequence[Measured]) -> Comparison:
    """Group the runs that differ only in the seed. Rank the groups if all have the same validation text.

    Nats per byte and per character are different units, so runs with different tokenizers are ranked by bits per
    character.
    """
    groups = _grouped(runs)
    unit: Unit = "loss" if len({run.settings["data.tokenizer"] for run in runs}) == 1 else "bits_per_character"
    is_ranked = len({run.validation_text for run in runs}) == 1
    notes = [note.format(values) for note, value in DIFFERENCES if (values := _differing(groups, value))]
    if is_ranked:
        groups.sort(key=lambda group: group.mean(lambda run: getattr(run.result, unit)))
    else:
        texts = []
        for group in groups:
            name, (_, split) = group.runs[0].metadata.corpus, group.runs[0].validation_text
            texts.append(f"{group.name}: {name}" + f", data.val_fraction {split}" * bool(split))
        notes.insert(0, f"not ranked, because the validation texts differ ({'; '.join(texts)})")
    return Comparison(tuple(groups), unit, is_ranked and len(groups) > 1, tuple(notes))


def _grouped(runs: Sequence[Measured]) -> list[Group]:
    """Return a group for each experiment. A second run with the same seed starts another group."""
    groups = list[list[Measured]]()
    for run in runs:
        for group in groups:
            if group[0].experiment == run.experiment and run.settings not in [member.settings for member in group]:
                group.append(run)
                break
        else:
            groups.append([run])
    return [Group(tuple(group)) for group in groups]


def _differing(groups: Sequence[Group], value: Callable[[Measured], object]) -> str:
    """Return each distinct value with its groups, or "" if all values are equal."""
    names: dict[str, dict[str, None]] = {}
    for group in groups:
        for run in group.runs:
            names.setdefault(escape(value(run)), {})[group.name] = None
    return "; ".join(f"{text}: {', '.join(labels)}" for text, labels in names.items()) if len(names) > 1 else ""


def measure(name: str, checkpoint: Checkpoint, runtime: Runtime) -> Measured:
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
    result = evaluate(model, data.validation, data.tokenizer, autocast=runtime.autocast)
    if not math.isfinite(result.loss):
        raise CheckpointError(f"{escape(name)}: the loss is {result.loss:g}; an earlier checkpoint may work")
    run = run_of(checkpoint.path)
    curve = read_curve(run) if run else Curve()  # a copied checkpoint has no curves
    return Measured(name, checkpoint.path, metadata, decisive(flatten(config)), result, curve)


def read_curve(run: Path) -> Curve:
    """Read the evaluations and the throughput of a run from its metrics.jsonl."""
    points = sorted(read_points(run, "validation", "step", "time", "loss"))
    speeds = [speed for (speed,) in read_points(run, "train", "speed/characters_per_second")]
    steps, seconds, loss = zip(*points, strict=True) if points else ((), (), ())
    return Curve(steps, seconds, loss, statistics.median(speeds) if speeds else None)
