"""Compare measured runs: group the seeds of one setting, and rank what is comparable."""

import json
import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Literal

import numpy as np

from minigpt.errors import escape
from minigpt.interpret.measured import Measured

Measure = Literal["loss", "bits_per_character"]

ALIKE = 1.1
"""Sizes, training times and steps that differ by a smaller factor count as equal."""


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

    Nats per byte and per character are different units, so runs with different tokenizers are ranked by bits per
    character.
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
    """Yield what to know before comparing, the most important first."""
    yield from _text_notes(groups)
    yield from _training_notes(groups)
    runs = [run for group in groups for run in group.runs]
    if short := [run.name for run in runs if not run.result.by_position]:
        yield f"no loss by position for {', '.join(short)}: the validation text is shorter than one window"
    if without := [run.name for run in runs if not len(run.curve.steps)]:
        yield f"no training curves for {', '.join(without)}: metrics.jsonl is missing or has no evaluation"


def _text_notes(groups: Sequence[Group]) -> Iterator[str]:
    """Yield how the validation texts and their tokens differ."""
    if len({run.text[0] for group in groups for run in group.runs}) > 1:
        corpora = _listed(groups, lambda run: run.metadata.corpus) or "of the same name, with different content"
        yield f"not ranked, because the texts differ ({corpora})"
    elif splits := _listed(groups, lambda run: run.text[1]):
        yield f"not ranked, because the validation parts differ (data.val_fraction {splits})"
    if tokenizers := _listed(groups, lambda run: run.settings["data.tokenizer"]):
        yield f"the tokenizers differ ({tokenizers}), so compare bits per character, not losses in nats"
        # A text may be split in the middle of a character's bytes.
        if sizes := _listed(groups, lambda run: f"{run.result.characters:,} characters"):
            yield f"their validation parts differ in length ({sizes})"


def _training_notes(groups: Sequence[Group]) -> Iterator[str]:
    """Yield how the models and their training differ."""
    machines = _listed(groups, lambda run: run.machine)
    amounts: tuple[tuple[str, str, Callable[[Measured], float]], ...] = (
        ("sizes", "parameters", lambda run: run.metadata.parameters),
        ("training times", "s", lambda run: 0 if machines else run.trained[1]),
        ("lengths of training", "steps", lambda run: run.trained[0]),
    )
    for noun, unit, value in amounts:
        means = {group.name: mean for group in groups if (mean := group.mean(value))}  # 0 if another program trained it
        least = min(means.values(), default=0.0)
        if max(means.values(), default=0.0) > max(least * ALIKE, least + 1):
            shown = "; ".join(f"{mean:,.0f} {unit}: {escape(name)}" for name, mean in means.items())
            yield f"the {noun} differ ({shown}), which also changes the loss"
    if contexts := _listed(groups, lambda run: run.settings["model.context"]):
        yield f"the contexts differ ({contexts}), so the losses are measured on different windows"
    if steps := _listed(groups, _tokens_per_step):
        yield f"a step reads different amounts of text ({steps}), so compare the curves by time"
    if dtypes := _listed(groups, lambda run: run.metadata.runtime.dtype):
        yield f"the runs were trained in different precisions ({dtypes})"
    if machines:
        yield f"do not compare training times, because the machines or threads differ ({machines})"
    for group in groups:
        ends = {run.name: int(run.curve.steps[-1]) for run in group.runs if len(run.curve.steps)}
        if len({*ends.values()}) > 1:
            steps = ", ".join(f"{name} to step {end:,}" for name, end in ends.items())
            yield f"the seeds of {group.name} were not trained equally long ({steps})"


def _listed(groups: Sequence[Group], value: Callable[[Measured], object]) -> str:
    """Return each distinct value with its groups, or "" if there is only one."""
    by_value: dict[str, dict[str, None]] = {}
    for group in groups:
        for run in group.runs:
            by_value.setdefault(escape(value(run)), {})[group.name] = None
    if len(by_value) == 1:
        return ""
    return "; ".join(f"{key}: {', '.join(names)}" for key, names in by_value.items())


def _tokens_per_step(run: Measured) -> str:
    return f"{run.settings['train.batch_size'] * run.settings['model.context']:,} tokens"


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
