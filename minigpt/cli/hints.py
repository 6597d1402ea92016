"""Suggest what to type next. Only this module knows both the errors and the command line."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from typer.exceptions import TyperException

from minigpt.errors import (
    CheckpointError,
    ConfigAsTextError,
    DeviceError,
    DivergedError,
    DownloadError,
    EncodingError,
    FolderNotEmptyError,
    InsufficientMemoryError,
    JoinError,
    MissingPackageError,
    NoAttentionError,
    NoCounterpartError,
    NoOptimizerError,
    OtherProcessError,
    RunExistsError,
    RunFinishedError,
    RunMovedError,
    RunNotFoundError,
    TextError,
    TextMismatchError,
    TrainingError,
    UnknownCharacterError,
    UserError,
    escape,
    reason,
)
from minigpt.world import is_one_of_several, rank


def error_line(error: Exception, command: str) -> str | None:
    """Return the line to print for an error in `minigpt COMMAND`, with a hint.

    The line is empty if there is nothing to print. Return None for unexpected errors, which need a traceback.
    """
    match error:
        case TyperException():
            return _usage_line(error)
        case OtherProcessError():  # which prints the line
            return ""
        case DivergedError() | RunFinishedError() if rank():  # every process raises it
            return ""
        case UserError():
            problem = f"{escape(error)}; {hint(error, command)}".removesuffix("; ")
        case BrokenPipeError():  # the reader of the output, such as `head`, has exited
            return ""
        case OSError():
            problem = f"{escape(error.filename)}: {reason(error)}" if error.filename else reason(error)
        case MemoryError() | RuntimeError():
            from minigpt.model.memory import as_memory_error

            if as_memory_error(error) is None:
                return None
            problem = "out of memory; everything saved so far is intact"
        case _:
            return None
    return f"minigpt: {f'process {rank()}: ' if rank() else ''}{problem}"


def _usage_line(error: TyperException) -> str:
    from minigpt.config.aliases import ALIASES
    from minigpt.config.resolve import fields
    from minigpt.paths import RUNS

    message = error.format_message().replace("\n\t", " ")  # in the list of choices
    context = getattr(error, "ctx", None)
    extra = re.match(r"Got unexpected extra argument.*? \((.*)\)", message)
    if extra and context is not None and context.info_name == "sample":
        run, first = context.params["run"], context.params.get("prompt") or ""
        is_word = not (run == "last" or os.path.exists(RUNS / run) or os.path.exists(run))
        words = " ".join(filter(None, (first, run if is_word else "", extra[1])))
        message += f"; to continue a text: --prompt {shell_quote(words)}"
    if not message or message.startswith("Usage:"):  # a command group without a command has printed its help
        return message
    line = f"minigpt: {escape(message.rstrip('.'))}"
    option = (getattr(error, "option_name", None) or "").lstrip("-").replace("-", "_")
    has_settings = context is not None and any(parameter.name == "set_" for parameter in context.command.params)
    alias = ALIASES.get(option, "").partition(" ")[0]
    setting = next((key for key in fields() if key.endswith(f".{option}")), alias)
    if setting and has_settings:
        line += f"; to change a setting: --set {setting}=VALUE"
    return f"{line}; see {context.command_path} --help" if context else line


def hint(error: UserError, command: str) -> str:
    """Return a hint for `error`, raised by `minigpt COMMAND`. The hint is empty if none is known."""
    if isinstance(error, TextError):
        return _text_hint(error, command)
    return _run_hint(error, command) or _model_hint(error, command)


def _text_hint(error: TextError, command: str) -> str:
    match error:
        case EncodingError(suggestion=encoding) if encoding:
            return f"try {'--set data.encoding=' if _has_settings(command) else '--encoding '}{encoding}"
        case ConfigAsTextError(name=name):
            return f"to use it: minigpt {command} --config {shell_quote(name)}"
        case UnknownCharacterError() if command == "train":
            new = "a new run with --set data.tokenizer=byte reads any character"
            return f"to leave them out, add --unknown skip; the vocabulary of a run cannot change, but {new}"
        case UnknownCharacterError() if command.startswith("import"):
            return "name the text that the model was trained on"
        case UnknownCharacterError():
            return "add --unknown skip or --unknown replace"
        case DownloadError(destination=Path() as path):
            return f"download it yourself and save it as {shell_quote(path)}"
        case TextMismatchError(checkpoint=Path() as path) if command == "eval":
            return f"to evaluate on a different text: minigpt eval {checkpoint_argument(path)} TEXT"
        case TextMismatchError() if command == "train":
            return "if the text has moved, add --set data.source=TEXT; if you changed it, start a new run"
        case TextMismatchError() if command == "sample":
            return "put its text back where it was, or leave out --copied"
        case TextMismatchError() if command == "compare":
            return "put its text back where it was, or leave this run out"
    return ""


def _run_hint(error: UserError, command: str) -> str:
    """Return a hint about a run or its checkpoints, or "" for other errors."""
    match error:
        case RunNotFoundError(names=()):
            return "to start one: minigpt train"
        case RunNotFoundError(names=names):
            return f"available runs: {', '.join(map(shell_quote, names))}"
        case RunExistsError(run=run, is_resumable=True) if command == "train":
            return f"to resume it: {resume_command(run)}, or choose a different --name"
        case RunExistsError(run=run) if command == "course":
            return f"rename {shell_quote(run)}, then try again"
        case RunExistsError():
            return "choose a different --name"
        case RunMovedError():
            return "to resume from its last checkpoint, pass its new folder to minigpt train --resume"
        case RunFinishedError(run=run, settings=settings):
            return f"to train longer: {resume_command(run, settings)}"
        case CheckpointError(intact=steps) if steps and command == "compare":
            return f"to compare an intact checkpoint, give its folder: RUN/checkpoints/step-{steps[-1]:08d}"
        case CheckpointError(intact=steps) if steps and command not in ("train", "runs"):
            return f"try {' or '.join(f'--checkpoint {step}' for step in steps)}"
        case NoOptimizerError(run=run):
            return f"to train it further, start a new run: minigpt train TEXT --from {as_argument(run)}"
        case DivergedError():
            lower = "start a new run with a lower optim.lr"  # the same settings would diverge again
            return f"{_retry(error)}, or {lower}" if error.settings else lower
        case TrainingError():
            return _retry(error)
        case JoinError():
            return "start them with torchrun or minigpt train --processes N; to train in one process, unset WORLD_SIZE"
    return ""


def _model_hint(error: UserError, command: str) -> str:
    """Return a hint about what a model can do, its exports, or its device, or "" for other errors."""
    match error:
        case NoAttentionError(checkpoint=path):
            name = checkpoint_argument(path)
            return f"to see how it uses its past: minigpt eval {name} --by-position"
        case NoCounterpartError():
            return "every model fits --to safetensors"
        case MissingPackageError(extra=extra):
            return f"to install it, in minigpt's folder: pip install {shell_quote(f'.[{extra}]')}"
        case FolderNotEmptyError(is_export=True):
            return "to replace it, add --force"
        case FolderNotEmptyError():
            return "name a new folder"
        case InsufficientMemoryError(settings=settings) if settings:
            return f"try {set_options(settings)}, which changes only rounding and dropout"
        case InsufficientMemoryError() if _has_settings(command):
            return "try a smaller train.batch_size, model.context, model.n_embd or model.n_layer"
        case DeviceError() if command != "runs":
            return f"try {'--set runtime.device=auto' if _has_settings(command) else '--device cpu'}"
    return ""


def _has_settings(command: str) -> bool:
    """Return whether `minigpt COMMAND` takes --set instead of separate options."""
    return command in ("train", "plan")


def _retry(error: TrainingError) -> str:
    """Return a hint to resume the run, or to start it again, with settings that may help."""
    if error.saved_step is not None:
        return f"to resume from step {error.saved_step}: {resume_command(error.run, error.settings)}"
    return f"try {set_options(error.settings)}" if error.settings else ""


def set_options(settings: Iterable[str]) -> str:
    """Return the --set options for `settings`, each KEY=VALUE."""
    return " ".join(f"--set {shell_quote(setting)}" for setting in settings)


def resume_command(run: Path, settings: Iterable[str] = ()) -> str:
    """Return the command that resumes `run` with changed `settings`, each KEY=VALUE."""
    size = os.environ.get("LOCAL_WORLD_SIZE")  # of this machine
    several = f"--processes {size}" if is_one_of_several() and size == os.environ["WORLD_SIZE"] else ""
    return " ".join(filter(None, (f"minigpt train --resume {as_argument(run)}", several, set_options(settings))))


def as_argument(run: Path) -> str:
    """Return the argument that names `run`: its name if it is in runs/, else its folder."""
    from minigpt.paths import RUNS

    return shell_quote(run.name if run.parent == RUNS else run)


def checkpoint_argument(path: Path) -> str:
    """Return the argument that names the checkpoint at `path`: its run if it is the best there, else its folder."""
    from minigpt.storage.runs import find_checkpoint

    run = path.parent.parent
    with suppress(UserError):  # a copied checkpoint has no run
        if find_checkpoint(str(run)) == path:
            return as_argument(run)
    return shell_quote(path)


def shell_quote(word: object) -> str:
    """Quote `word` for this system's shell."""
    text = escape(word)
    return subprocess.list2cmdline([text]) if os.name == "nt" else shlex.quote(text)
