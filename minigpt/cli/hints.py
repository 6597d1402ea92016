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

from minigpt import errors
from minigpt.cli.options import TEXT
from minigpt.errors import UserError, escape, reason
from minigpt.world import is_one_of_several, rank


def error_line(error: Exception, command: str) -> str | None:
    """Return the line to print for an error in `minigpt COMMAND`, with a hint.

    The line is empty if there is nothing to print. Return None for unexpected errors, which need a traceback.
    """
    match error:
        case TyperException():
            return _usage_line(error, command)
        case errors.OtherProcessError():  # which prints the line
            return ""
        case errors.DivergedError() | errors.RunFinishedError() if rank():  # every process raises it
            return ""
        case UserError():
            message = _config_problem(error, command) if isinstance(error, errors.ConfigError) else error.problem
            problem = f"{escape(message)}; {hint(error, command)}".removesuffix("; ")
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


COMMANDS = {
    "resume continue": "train --resume last",
    "finetune fine-tune": "train TEXT --from last",
    "start fit": "train TEXT",
    "generate chat complete predict write": "sample last --prompt TEXT",
    "evaluate test": "eval last",
    "show view open visualize": "inspect last --open",
    "list ls status": "runs",
    "tensorboard curves": "board",
    "download": "data get NAME",
    "presets": "config list",
    "settings": "config settings",
    "version": "--version",
}
"""What to type for names that are no commands."""
WITHDRAWN = {
    "attention --tty": "the page shades the text: minigpt inspect last --open",
    "attention --query": "click a letter of the page: minigpt inspect last --open",
    "attention --probe": "click a letter of the page: minigpt inspect last --open",
    "attention --scores": "all scores are in the JSON: minigpt attention last --json",
    "attention --max-tokens": "choose the part with --text",
    "claims --figures": "a claim by its number shows what its test measured, as in `minigpt claims 9`",
    "claims --checkpoint": "to see what the heads of a run do: minigpt inspect last --open",
    "export --force": "delete the earlier export, or name a new folder",
    "import hf": "copy a checkpoint folder instead; every command takes it in the place of a run",
    "inspect --max-tokens": "choose the part with --text",
    "inspect --max-weights": "a page contains any model up to 12 MB; for a larger one: minigpt attention last",
    "plan --device": "use the setting: --set runtime.device=cuda",
    "plan --vocab-size": "name the text: minigpt plan TEXT",
    "sample --device": "the command runs on the CPU, which is faster for single tokens; leave the option out",
    "sample --engine": "the command always uses NumPy, which is faster; leave the option out",
    "sample --with": "to measure the average of two runs, use `minigpt eval` with this option",
    "train.histograms": "in Python, minigpt.load_checkpoint gives all weights",
    "train.hparams": "to compare settings: minigpt runs --diff",
    "train.max_skipped": "a loss that is not finite ends the run; remove the setting",
    "train.minutes": "use the option: minigpt train TEXT --minutes 10",
    "train.on_nonfinite": "a loss that is not finite ends the run; remove the setting",
}
"""What replaces withdrawn options, commands and settings, for this version."""


def _usage_line(error: TyperException, command: str) -> str:
    """Return the line for arguments that are not understood: what is wrong, and what to type."""
    from pydantic import ValidationError

    from minigpt.config.resolve import in_words

    message = error.format_message().replace("\n\t", " ")  # in the list of choices
    if not message or message.startswith("Usage:"):  # a command group without a command has printed its help
        return message
    context = getattr(error, "ctx", None)
    typed = " ".join(filter(None, (command, getattr(error, "option_name", None))))
    if typed in WITHDRAWN:
        return f"minigpt: {typed} was withdrawn: {WITHDRAWN[typed]}"
    if name := getattr(error, "option_name", None):
        problem = _option_problem(error, name, command)
    elif unknown := re.match("No such command '(.*?)'", message):
        if problem := _command_problem(unknown[1]):
            return f"minigpt: {escape(problem)}"
        problem = message
    elif isinstance(error.__cause__, ValidationError):
        (details, *_) = error.__cause__.errors()
        parameter, words = error.param, in_words(details)  # type: ignore[attr-defined]
        option = parameter.metavar if parameter.param_type_name == "argument" else parameter.opts[0]
        is_choice = details["type"] == "value_error"
        problem = f"{option}: {words}" if is_choice else f"{option} is {details['input']}, but should be {words}"
    else:
        problem = message
    problem = escape(problem.rstrip("."))
    if message.startswith("Missing argument") and context is not None:
        example = re.search(r"Examples:\s+(minigpt .*?)(?:   |\n|$)", context.command.help or "")
        problem += f"; for example: {example[1]}" if example else ""
    return f"minigpt: {problem}; see {context.command_path if context else f'minigpt {command}'} --help"


def _command_problem(name: str) -> str:
    """Return what is wrong with the name of a command, and what to type, or "" if that is not known."""
    guess = next((line for names, line in COMMANDS.items() if name in names.split()), "")
    if is_text(name):
        return f"{name} is a text; to train on it: minigpt train {shell_quote(name)}"
    if run := run_named(name):
        return f"{name} is a run; to generate text: minigpt sample {as_argument(run)}"
    return f"no command is named '{name}'; try minigpt {guess}" if guess else ""


def _option_problem(error: TyperException, name: str, command: str) -> str:
    """Return what is wrong with an option, and what to type: another option, a setting, or a value."""
    from minigpt.config.aliases import ALIASES
    from minigpt.config.resolve import fields

    if "requires an argument" in error.format_message():
        return f"{name} needs a value"
    key = name.lstrip("-").replace("-", "_")
    setting = next(
        (field for field in fields() if field.endswith(f".{key}")),
        ALIASES.get(key, "").partition(" ")[0],
    )
    section, _, option = setting.partition(".")
    if setting and _has_settings(command):
        return f"no option is named {name}; it is a setting: --set {setting}=VALUE"
    if section == "sample" and command == "sample":
        return f"no option is named {name}; use --{option.replace('_', '-')}"
    return error.format_message()


def _config_problem(error: errors.ConfigError, command: str) -> str:
    """Return the problem with options in the place of settings, and with what replaces withdrawn settings."""
    problem = error.problem
    if not _has_settings(command):
        setting = re.match(r"configuration: (?:sample|runtime)\.(\w+)", problem)
        problem = f"--{setting[1].replace('_', '-')}{problem[setting.end() :]}" if setting else problem
    return re.sub(r"(\S+) was withdrawn", lambda match: f"{match[0]}: {WITHDRAWN.get(match[1])}", problem)


def hint(error: UserError, command: str) -> str:
    """Return a hint for `error`, raised by `minigpt COMMAND`. The hint is empty if none is known."""
    if isinstance(error, errors.TextError):
        return _text_hint(error, command)
    return _run_hint(error, command) or _model_hint(error, command)


def _text_hint(error: errors.TextError, command: str) -> str:
    match error:
        case errors.EncodingError(suggestion=encoding) if encoding:
            return f"try {'--set data.encoding=' if _has_settings(command) else '--encoding '}{encoding}"
        case errors.TextNotFoundError(name=name) if run := run_named(name):
            evaluate = f"to evaluate it: minigpt eval {as_argument(run)}"
            return f"it is a run; {f'to resume it: {resume_command(run)}' if command == 'train' else evaluate}"
        case errors.TextNotFoundError(has_similar=False):
            return f"a text is one of these: {TEXT[:1].lower()}{TEXT[1:].rstrip('.')}"
        case errors.ConfigAsTextError(name=name):
            return f"to use it: minigpt {command} --config {shell_quote(name)}"
        case errors.UnknownCharacterError() if command == "train":
            new = "a new run with --set data.tokenizer=byte reads any character"
            return f"to leave them out, add --unknown skip; the vocabulary of a run cannot change, but {new}"
        case errors.UnknownCharacterError():
            return "add --unknown skip or --unknown replace"
        case errors.DownloadError(destination=Path() as path):
            return f"download it yourself and save it as {shell_quote(path)}"
        case errors.TextMismatchError(checkpoint=Path() as path) if command == "eval":
            return f"to evaluate on a different text: minigpt eval {shell_quote(path)} TEXT"
        case errors.TextMismatchError() if command == "train":
            return "if the text has moved, add --set data.source=TEXT; if you changed it, start a new run"
        case errors.TextMismatchError():
            return "put its text back where it was"
    return ""


def _run_hint(error: UserError, command: str) -> str:
    """Return a hint about a run or its checkpoints, or "" for other errors."""
    match error:
        case errors.RunNotFoundError(name=name) if run_named(name):  # where a folder of runs is expected
            return f"{escape(name)} is a run; to list all: minigpt runs"
        case errors.RunNotFoundError(name=name) if is_text(name) and command == "eval":
            return f"it is a text; name the run first: minigpt eval last {shell_quote(name)}"
        case errors.RunNotFoundError(name=name) if is_text(name):
            return f"it is a text; train on it first: minigpt train {shell_quote(name)}"
        case errors.RunNotFoundError(name=name) if command == "sample" and not re.fullmatch(r"[\w.+/\\-]*", name):
            return f"to continue a text: --prompt {shell_quote(name)}"
        case errors.RunNotFoundError(name=name) if chapter := re.match(r"course-(\d+)", name):
            return f"to train it: minigpt course run {chapter[1]}"
        case errors.RunNotFoundError(names=()):
            return "to start one: minigpt train"
        case errors.RunNotFoundError(names=names):
            return f"available runs: {', '.join(map(shell_quote, names))}"
        case errors.RunExistsError(run=run, is_resumable=True) if command == "train":
            return f"to resume it: {resume_command(run)}, or choose a different --name"
        case errors.RunExistsError(run=run) if command == "course":
            return f"rename {shell_quote(run)}, then try again"
        case errors.RunExistsError():
            return "choose a different --name"
        case errors.RunMovedError():
            return "to resume from its last checkpoint, pass its new folder to minigpt train --resume"
        case errors.RunFinishedError(run=run, settings=settings):
            return f"to train longer: {resume_command(run, settings)}"
        case errors.CheckpointError(intact=steps) if steps and command not in ("train", "runs", "compare"):
            return f"try {' or '.join(f'--checkpoint {step}' for step in steps)}"
        case errors.NoOptimizerError(run=run):
            return f"to train it further, start a new run: minigpt train TEXT --from {as_argument(run)}"
        case errors.DivergedError():
            lower = "start a new run with a lower optim.lr"  # the same settings would diverge again
            return f"{_retry(error)}, or {lower}" if error.settings else lower
        case errors.TrainingError():
            return _retry(error)
        case errors.JoinError():
            return "start them with torchrun or minigpt train --processes N; to train in one process, unset WORLD_SIZE"
    return ""


def _model_hint(error: UserError, command: str) -> str:
    """Return a hint about what a model can do, its exports, or its device, or "" for other errors."""
    match error:
        case errors.NoAttentionError(checkpoint=path):
            return f"to see how it uses its past: minigpt eval {shell_quote(path)} --by-position"
        case errors.NoCounterpartError():
            return "every model fits --to safetensors"
        case errors.InsufficientMemoryError(settings=settings) if settings:
            return f"try {set_options(settings)}, which changes only rounding and dropout"
        case errors.InsufficientMemoryError() if _has_settings(command):
            return "try a smaller train.batch_size, model.context, model.n_embd or model.n_layer"
        case errors.DeviceError() if command != "runs":
            return f"try {'--set runtime.device=auto' if _has_settings(command) else '--device cpu'}"
    return ""


def _has_settings(command: str) -> bool:
    """Return whether `minigpt COMMAND` takes --set instead of separate options."""
    return command in ("train", "plan")


def _retry(error: errors.TrainingError) -> str:
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


def run_named(name: str) -> Path | None:
    """Return the folder of the run that `name` refers to, if there is one."""
    from minigpt.paths import RUNS, is_run

    with suppress(OSError):
        return next((folder for folder in (RUNS / name, Path(name)) if is_run(folder)), None)
    return None


def is_text(name: str) -> bool:
    """Return whether `name` refers to a file or a text of minigpt, rather than to a run."""
    return name.startswith(("builtin:", "download:")) or os.path.isfile(os.path.expanduser(name))


def as_argument(run: Path) -> str:
    """Return the argument that names `run`: its name if it is in runs/, else its folder."""
    from minigpt.paths import RUNS

    return shell_quote(run.name if run.parent == RUNS else run)


def shell_quote(word: object) -> str:
    """Quote `word` for this system's shell."""
    text = escape(word)
    return subprocess.list2cmdline([text]) if os.name == "nt" else shlex.quote(text)
