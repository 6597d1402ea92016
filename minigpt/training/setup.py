"""Preparation of a new or resumed run: its configuration and its text."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minigpt.config import presets, resolve
from minigpt.config.resolve import ConfigSource
from minigpt.config.schema import DataConfig, RunConfig
from minigpt.errors import (
    CheckpointError,
    ConfigError,
    NoOptimizerError,
    TextError,
    UserError,
    count,
    escape,
)
from minigpt.model.device import pick_device
from minigpt.storage.checkpoint import Checkpoint, changed_settings, read_intact
from minigpt.storage.runs import checkpoint_steps, newest_step, step_folder
from minigpt.text.dataset import TokenDataset, load_dataset, reload_dataset
from minigpt.training.fit import FITTED, WORK, fit, val_fraction
from minigpt.training.parallel import check_count
from minigpt.training.schedule import run_steps

if TYPE_CHECKING:
    from minigpt.training.timing import StepTime

DEFAULT = "stories"
"""The preset of a run without a text: its model writes readable sentences, and has heads that can be described."""
ENOUGH = 5000
"""Characters of text, or of validation text, below which a run gets a warning.

Parts of Tiny Shakespeare with 2,000 characters differ by 0.09 nats in loss (standard deviation), with 5,000 by 0.07.
"""


@dataclass(frozen=True)
class PreparedRun:
    """All that training needs before its first step."""

    config: RunConfig
    data: TokenDataset
    stem: str
    """The start of a new run's name, before its number."""
    notices: tuple[str, ...]
    """Choices of minigpt, skipped files and warnings, one line each."""
    checkpoint: Checkpoint | None = None
    """The checkpoint to resume from."""
    start: Checkpoint | None = None
    """The checkpoint whose weights a new run starts from."""
    sources: tuple[ConfigSource, ...] = ()
    """The given settings of a new run, with the highest priority last."""
    is_fitted: bool = False
    """Whether minigpt chooses the other settings, so that they fit the text."""
    origins: Mapping[str, str] = field(default_factory=dict)
    """The name of the source of each setting of a new run."""
    step_time: "StepTime | None" = None
    """How long a step takes here, if that was measured to choose the settings."""
    measured: Mapping[str, float] | None = None
    """What was measured to choose the settings. It is recorded in the run."""


def prepare_run(
    text: str | Sequence[str] = (),
    preset: str | None = None,
    assignments: Sequence[str] = (),
    start: Checkpoint | None = None,
    processes: int = 1,
) -> PreparedRun:
    """Prepare a new run on `text`, or on that of a preset. By default, use the preset `stories`.

    Without a shipped preset, fit the other settings to the text.

    Args:
        text: A source of text, or several.
        preset: The name of a preset, or the path of a YAML file.
        assignments: Settings as KEY=VALUE.
        start: A checkpoint to start from. The new run has its weights, vocabulary and model settings, except dropout.
        processes: The number of processes that will train the run, and the default of `train.shards`.

    Raises:
        ConfigError: Settings are wrong, or would change the model of `start`.
        UnknownCharacterError: The text has characters outside the vocabulary of `start`.
    """
    text = [text] if isinstance(text, str) else text
    has_source = any(assignment.startswith("data.source=") for assignment in assignments)
    if not text and preset is None and start is None and not has_source:
        preset = DEFAULT
    sources = _gather(text, preset, assignments, start, processes)
    is_fitted = not any(label.startswith(presets.PRESET) for label, _ in sources)
    resolved = resolve.resolve(*sources, complete=not is_fitted)
    _check_processes(resolved.config, processes)
    data = load_dataset(resolved.config.data, start.tokenizer if start else None)
    if is_fitted and resolved.sources["data.val_fraction"] == "default":
        data = data.resplit(val_fraction(data.size))
    notices = data.notices
    if resolved.sources["train.shards"] == f"{processes} processes":
        line = f"train.shards={processes}, one for each process: the run cannot be resumed on more processes"
        notices = (line, *notices)
    stem = name_stem((*text, preset or resolved.config.data.source[0])[0])
    tokens, context = len(data.train), resolved.config.model.context
    if tokens <= context and not (is_fitted and resolved.sources["model.context"] == "default"):
        if start:
            needs = f"the context of the model is {context} tokens, and the text has {tokens} training tokens"
            raise TextError(f"cannot start from run {escape(start.run_name)}: {needs}")
        sources = (*sources, ("length of the text", {"model.context": tokens - 1}))
        line = f"the text has {tokens} training tokens: model.context shrinks from {context} to {tokens - 1}"
        notices = (*notices, line)
    prepared = PreparedRun(resolved.config, data, stem, notices, None, start, sources, is_fitted)
    prepared = choose_settings(prepared, _default_work(resolved.config.runtime.device))
    warnings = _warn_of_text(data)
    if start and trained_on_validation(start, prepared.config.data, data.fingerprint):
        before = f"{escape(start.run_name)}, with data.val_fraction={start.config.data.val_fraction:g},"
        warnings.append(f"{before} was trained on a part of this validation text: the loss may be too low")
    return replace(prepared, notices=(*prepared.notices, *warnings))


def _gather(
    text: Sequence[str], preset: str | None, assignments: Sequence[str], start: Checkpoint | None, processes: int
) -> tuple[ConfigSource, ...]:
    """Return the given settings of a new run."""
    sources: list[ConfigSource] = [*presets.read_preset(preset)] if preset is not None else []
    if text:
        sources.append(("command line", {"data.source": list(text)}))
    sources.append(resolve.parse_overrides(assignments))
    if processes > 1 and not any("train.shards" in values for _, values in sources):
        sources.append((f"{processes} processes", {"train.shards": processes}))
    if start:
        sources.append((f"run {start.run_name}", _settings_of_start(start, sources)))
    return tuple(sources)


def choose_settings(prepared: PreparedRun, work: float, *others: ConfigSource) -> PreparedRun:
    """Return a new run with its given settings and `others`. If `is_fitted`, fit the rest to the text and `work`."""
    sources, data = (*prepared.sources, *others), prepared.data
    if prepared.is_fitted:
        settings = fit(data.size, data.tokenizer.vocab_size, work, *sources, longest=len(data.train) - 1)
        sources = ((FITTED, settings), *sources)
    resolved = resolve.resolve(*sources)
    return replace(prepared, config=resolved.config, origins=resolved.sources)


def _default_work(device: str) -> float:
    """Return the FLOP of a run whose duration the user leaves to minigpt."""
    # The device may be missing, which is checked later. A Mac's GPU counts as a CPU.
    is_gpu = (pick_device("auto") if device == "auto" else device).startswith("cuda")
    return WORK["gpu" if is_gpu else "cpu"]


def trained_on_validation(run: Checkpoint, data: DataConfig, fingerprint: str) -> bool:
    """Return whether a run was trained on a part of a dataset's validation text, as far as the fingerprints tell."""
    trained, _, has_validation = run.metadata.fingerprint.partition("+")
    source, _, validation = fingerprint.partition("+")
    if validation:
        return trained == validation
    return trained == source and (bool(has_validation) or run.config.data.val_fraction < data.val_fraction)


def describe(config: RunConfig, data: TokenDataset) -> str:
    """Return the shape and duration of a run as one line."""
    model, steps, size = config.model, run_steps(config, len(data.train)), config.train.batch_size
    shape = f"{count(model.n_layer, 'layer')}, {model.n_embd} wide, context {model.context}"
    epochs = steps * size * model.context / len(data.train)
    return f"{shape}; {count(steps, 'step')} of {count(size, 'sequence')}, {epochs:,.2f} epochs"


def _warn_of_text(data: TokenDataset) -> list[str]:
    """Return a line if a text is too short or uniform to train on, or its validation part too short to measure loss."""
    if data.tokenizer.vocab_size == 1:
        return ["the text repeats one character, so there is nothing to predict: its loss is 0"]
    if (characters := round(data.size * data.characters_per_token)) < ENOUGH:
        many = f"the text has only {characters:,} characters"
        return [f"{many}, and settings were measured from {ENOUGH:,}: expect the model to memorize it"]
    if (validation := round(len(data.validation) * data.characters_per_token)) < ENOUGH:
        return [f"only {validation:,} characters are for validation, so the loss may be off by about 0.1 nats"]
    return []


def _settings_of_start(start: Checkpoint, sources: Sequence[ConfigSource]) -> dict[str, Any]:
    """Return the settings that a run takes over from `start`. Raise ConfigError if `sources` change any."""
    settings = {key: value for key, value in resolve.flatten(start.config).items() if key.startswith("model.")}
    settings |= {"data.tokenizer": start.config.data.tokenizer}
    del settings["model.dropout"]  # not part of the weights
    changes = [
        f"{key} is {resolve.show(settings[key])} in the run but {resolve.show(values[key])} now ({escape(label)})"
        for label, values in sources
        for key in values.keys() & settings.keys()
        if values[key] != settings[key]
    ]
    if changes:
        raise ConfigError(f"the model of run {escape(start.run_name)} cannot change: {'; '.join(sorted(changes))}")
    return settings


def prepare_resume(
    run: Path,
    assignments: Sequence[str],
    found: tuple[Checkpoint, list[str]] | None = None,
    processes: int = 1,
) -> PreparedRun:
    """Prepare to resume a run, by default from its newest intact checkpoint.

    Args:
        assignments: Settings to change, as KEY=VALUE.
        found: The checkpoint, and a line for each one that was skipped, as `newest_intact` returns them.

    Raises:
        CheckpointError: No checkpoint is intact.
        ConfigError: A setting would make it a different run.
        TextMismatchError: The text is missing or has changed.
    """
    checkpoint, notices = found or newest_intact(run)
    if checkpoint.metadata.imported:
        raise NoOptimizerError(f"run {escape(run.name)} was imported and has no optimizer state to resume from", run)
    is_newest = checkpoint.metadata.step == newest_step(run)
    if is_newest and (problem := changed_settings(run, checkpoint.path)):
        notices.append(f"{problem}; using the checkpoint's settings")
    overrides = resolve.parse_overrides(assignments)
    config = resolve.resolve(("checkpoint", resolve.flatten(checkpoint.config)), overrides).config
    if changes := resolve.changed_on_resume(checkpoint.config, config):
        raise ConfigError(f"a resumed run keeps its settings: {'; '.join(changes)}")
    _check_processes(config, processes)
    is_named = bool({"data.source", "data.val_source"} & overrides[1].keys())
    metadata = checkpoint.metadata
    data = reload_dataset(
        config.data, metadata.fingerprint, checkpoint.tokenizer, metadata.characters, is_named=is_named
    )
    if len(data.train) <= config.model.context:
        needs = f"a context of {config.model.context} tokens, and its training text has {len(data.train)}"
        raise CheckpointError(f"cannot resume run {escape(run.name)}: {escape(checkpoint.path)} has {needs}")
    return PreparedRun(config, data, run.name, (*notices, *data.notices), checkpoint)


def _check_processes(config: RunConfig, processes: int) -> None:
    check_count(processes, config)
    if processes > 1 and "-" in (*config.data.source, *config.data.val_source):
        raise TextError(f"{processes} processes cannot share standard input; save the text to a file")


def newest_intact(run: Path) -> tuple[Checkpoint, list[str]]:
    """Return the newest intact checkpoint, without weights, and a line for each newer checkpoint that is damaged."""
    notices: list[str] = []
    for step in reversed(checkpoint_steps(run)):
        try:
            return read_intact(step_folder(run, step)), notices
        except UserError as error:
            notices.append(f"skipping the checkpoint of step {step}: {error}")
    why = f"no checkpoint is intact ({notices[0]})" if notices else "it has no checkpoint"
    raise CheckpointError(f"cannot resume run {escape(run.name)}: {why}")


def name_stem(source: str) -> str:
    """Return the start of a run's name from the name of a preset or a text: "../My File.txt" becomes "My-File"."""
    name = Path(source.removeprefix("builtin:").removeprefix("download:")).name.lstrip(".")
    return re.sub(r"\W+", "-", name.split(".")[0]).strip("-_") or "text"
