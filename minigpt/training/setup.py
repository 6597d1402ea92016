"""How a run begins: the configuration and the text of a new run, or those of a run that goes on."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from minigpt.config import presets
from minigpt.config import resolve as config
from minigpt.config.resolve import Layer
from minigpt.config.schema import RunConfig
from minigpt.errors import UserError, escape
from minigpt.files import read_text_within, write_atomically
from minigpt.model.device import pick_device
from minigpt.storage import runs
from minigpt.storage.metadata import LIMITS, Environment, Metadata, verify
from minigpt.text.dataset import TokenDataset, load_dataset
from minigpt.text.tokenizer import from_json


@dataclass(frozen=True)
class Start:
    """All that training needs to know before its first step."""

    config: RunConfig
    data: TokenDataset
    stem: str
    """How to call a new run, before its number."""
    notices: tuple[str, ...]
    """What was chosen for the user, a line each."""
    checkpoint: Path | None = None
    """Where a resumed run goes on from."""
    step: int = 0
    """How many steps it has made there."""
    runtime: Environment | None = None
    """What computed it there."""


def prepare_run(text: Sequence[str], preset: str | None, assignments: Sequence[str]) -> Start:
    """Prepare a new run: on `text`, or on what a preset names; with a preset, or one fitted to the text.

    `assignments` are KEY=VALUE. Raises UserError for a text that cannot be read or a configuration that cannot be.
    """
    layers: list[Layer] = []
    fits = bool(text) and preset is None
    if preset is not None:
        layers.append(presets.read_layer(preset))
    elif not text:
        layers.append(presets.shipped_layer("quickstart"))
    if text:
        layers.append(("command line", {"data.source": list(text)}))
    layers.append(config.parse_overrides(assignments))
    resolved = config.resolve(*layers, complete=not fits)  # else what fits the text comes below them
    data = load_dataset(resolved.config.data)
    notices = list(data.notices)
    if len(text) == 1 and text[0].endswith((".yaml", ".yml")):
        notices.append(f"{text[0]} is what is trained on; were it the settings, it would go by --config")
    if fits:
        fitted = presets.fit(data.characters, gpu=pick_device(resolved.config.runtime.device) != "cpu")
        layers.insert(0, fitted)
        resolved = config.resolve(*layers)
        data = data.resplit(resolved.config.data.val_fraction)
        chosen = [f"{key}={value}" for key, value, source in config.explain(resolved) if source == fitted[0]]
        notices.append(f"{fitted[0]}: {', '.join(chosen)}")
    room, context = len(data.train) - 1, resolved.config.model.context
    if room < context:
        notices.append(f"the text has {room + 1} tokens to train on: model.context shrinks from {context} to {room}")
        resolved = config.resolve(*layers, ("fitted to the text", {"model.context": room}))
    stem = name_stem(preset or (text[0] if text else "quickstart"))
    return Start(resolved.config, data, stem, tuple(notices))


def prepare_resume(run: Path, assignments: Sequence[str]) -> Start:
    """Prepare to go on with a run from its newest intact checkpoint.

    Raises UserError for a change that would make it another run, for another text, and when no checkpoint is intact.
    """
    checkpoint, meta, notices = newest_intact(run)
    overrides = config.parse_overrides(assignments)
    try:
        stored = presets.read_layer(str(run / "config.yaml"))
        config.resolve(stored)
    except UserError as error:
        raise UserError(f"{error} (as it was trained last: {checkpoint / 'config.yaml'})") from error
    resolved = config.resolve(stored, overrides)
    # Compared with the checkpoint's own copy, whose hash was just checked: the run's may have been edited.
    text = read_text_within(checkpoint / "config.yaml", checkpoint, LIMITS["config.yaml"])
    trained = config.from_yaml(text, str(checkpoint / "config.yaml"))
    if changes := config.changed_on_resume(trained, resolved.config):
        raise UserError(f"a resumed run keeps its settings, but {'; '.join(changes)}; start a new run instead")
    vocabulary = checkpoint / "tokenizer.json"
    tokenizer = from_json(read_text_within(vocabulary, checkpoint, LIMITS[vocabulary.name]), str(vocabulary))
    data = load_dataset(resolved.config.data, known=(meta.corpus.fingerprint, tokenizer))
    return Start(resolved.config, data, run.name, (*notices, *data.notices), checkpoint, meta.step, meta.runtime)


@contextmanager
def recorded_run(run: Path, start: Start, command: Sequence[str]) -> Iterator[None]:
    """Store what a run begins or goes on with, for the block that trains it.

    A run that was to go on, and of which the block raises before it saved anything, has its settings back.
    """
    settings, saved = run / "config.yaml", runs.written_checkpoints(run)
    before = settings.read_text(encoding="utf-8") if start.checkpoint else ""
    try:
        write_atomically(settings, config.to_yaml(start.config))
        runs.record_start(run, start.step, command, pick_device(start.config.runtime.device, start.runtime))
        yield
    except BaseException:
        if start.checkpoint and runs.written_checkpoints(run) <= saved:
            with suppress(OSError):  # a disk that refuses: what it said first is what counts
                write_atomically(settings, before)
        raise


def newest_intact(run: Path) -> tuple[Path, Metadata, list[str]]:
    """Return the newest checkpoint that is as it was written, with its meta.json and a line for each newer one.

    Raises UserError when there is none.
    """
    notices: list[str] = []
    for step in reversed(runs.checkpoint_steps(run)):
        checkpoint = runs.step_folder(run, step)
        try:
            return checkpoint, verify(checkpoint), notices
        except UserError as error:
            notices.append(f"skipping the checkpoint of step {step}: {error}")
    problem = "no checkpoint of it is intact" if notices else "it has no checkpoint"
    why = "".join(f" ({line})" for line in notices[:1])
    raise UserError(f"cannot resume run {escape(run.name)}: {problem}{why}; start it anew under another --name")


def name_stem(source: str) -> str:
    """Return the start of a run's name, made from a preset's name or from the text's: "../My File.txt" is My-File."""
    name = Path(source.rpartition(":")[2]).name.lstrip(".")
    return re.sub(r"\W+", "-", name.split(".")[0]).strip("-_") or "text"
