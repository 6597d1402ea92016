"""Describe the errors of commands, and what to type next."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from typer.exceptions import TyperException

from minigpt import errors
from minigpt.cli.options import TEXT, ExtraArgumentError, UnknownCommandError, option_of, options_of
from minigpt.errors import UserError, escape, reason
from minigpt.paths import RUNS, is_run
from minigpt.world import is_one_of_several, rank


def error_line(error: Exception, command: str, options: Collection[str] = ()) -> str | None:
    """Return the line to print for an error in `minigpt COMMAND`, which has these options, with a hint.

    The line is empty if there is nothing to print. Return None for unexpected errors, which need a traceback.
    """
    match error:
        case TyperException():
            return _usage_line(error, command)
        case errors.OtherProcessError():  # the other process prints the line
            return ""
        case errors.DivergedError() | errors.RunFinishedError() if rank():  # every process raises it
            return ""
        case errors.ConfigError():
            problem = "\n".join(map(escape, _config_problem(error, options).split("\n")))
        case UserError():
            problem = f"{escape(error.problem)}; {hint(error, command, options)}".removesuffix("; ")
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


def _usage_line(error: TyperException, command: str) -> str:
    """Return the line for arguments that are not understood: what is wrong, and what to type."""
    from pydantic import ValidationError

    from minigpt.config.resolve import in_words

    context: Any = getattr(error, "ctx", None)  # Typer's classes of errors are private, their fields are data
    parameter: Any = getattr(error, "param", None)
    if isinstance(error.__cause__, ValidationError):
        (details, *_) = error.__cause__.errors()
        words = in_words(details)
        option = parameter.metavar if parameter.param_type_name == "argument" else parameter.opts[0]
        is_choice = details["type"] == "value_error"
        problem = f"{option}: {words}" if is_choice else f"{option} is {details['input']}, but should be {words}"
    elif isinstance(error, UnknownCommandError):
        if found := _found_instead(error):
            return f"minigpt: {escape(found)}"
        meant = errors.did_you_mean(error.name, error.known) or f"; there are {', '.join(error.known)}"
        problem = f"{error.message}{meant}"
    elif isinstance(error, ExtraArgumentError):
        names = ("--file", "--prompt") if os.path.exists(error.argument) else ("--prompt", "--text", "--file")
        option = next((name for name in names if name in options_of(context.command)), None)
        problem = error.message + (f"; a text is {option} {shell_quote(error.argument)}" if option else "")
    elif hasattr(error, "possibilities"):  # of an option that does not exist
        problem = _option_problem(error, context)
    else:
        problem = error.format_message().replace("\n\t", " ")  # in the list of choices
    if not problem:  # a group without a command has printed its help
        return ""
    problem = escape(problem.rstrip("."))
    if hasattr(error, "param_type"):  # of an argument that is missing
        example = re.search(r"Examples:\s+(minigpt .*?)(?:   |\n|$)", context.command.help or "")
        problem += f"; for example: {example[1]}" if example else ""
    return f"minigpt: {problem}; see {context.command_path if context else f'minigpt {command}'} --help"


def _found_instead(error: UnknownCommandError) -> str:
    """Return what to do with the text or run that a user named in place of a command, or ""."""
    name, group = error.name, error.ctx.info_name if error.ctx.parent else None
    texts = {
        None: "train on it: minigpt train",
        "data": "describe it: minigpt data info",
        "course": "check it: minigpt course check 1",
    }
    runs = {None: "generate text: minigpt sample", "runs": "show it: minigpt runs show"}
    if group in texts and is_text(name):
        return f"{name} is a text; to {texts[group]} {shell_quote(name)}"
    if group in runs and (run := run_named(name)):
        return f"{name} is a run; to {runs[group]} {as_argument(run)}"
    return ""


def _option_problem(error: Any, context: Any) -> str:
    """Return what is wrong with an option that does not exist, and what to type instead."""
    from minigpt.config.aliases import ALIASES

    name = error.option_name
    if name in options_of(context.find_root().command):
        return f"{name} comes before the command"
    meant, options = ALIASES.get(name.lstrip("-").replace("-", "_"), ""), options_of(context.command)
    if meant and ("--set" in options or meant.startswith("RUN") or meant.partition(" ")[0] in options):
        return f"no option is named {name}; use {meant}"
    return str(error.format_message())


def _config_problem(error: errors.ConfigError, options: Collection[str]) -> str:
    """Return the problem with settings. If the command has options for them and no --set, name the options."""
    wrong = {} if "--set" in options else {option_of(key): (key, problem) for key, problem in error.wrong.items()}
    problems = [f"{name}{problem.removeprefix(key)}" for name, (key, problem) in wrong.items() if name in options]
    return "; ".join(problems) or error.problem


def hint(error: UserError, command: str, options: Collection[str]) -> str:
    """Return a hint for `error`, raised by `minigpt COMMAND`, which has these options. It is empty if none is known."""
    if isinstance(error, errors.TextError):
        return _text_hint(error, command, options)
    return _run_hint(error, command) or _model_hint(error, options)


def _text_hint(error: errors.TextError, command: str, options: Collection[str]) -> str:
    from minigpt.config.presets import presets

    match error:
        case errors.EncodingError(suggestion=encoding) if encoding and {"--encoding", "--set"} & {*options}:
            return f"try --encoding {encoding}"
        case errors.TextNotFoundError(name=name) if run := run_named(name):
            evaluate = f"to evaluate it: minigpt eval {as_argument(run)}"
            return f"it is a run; {f'to resume it: {resume_command(run)}' if command == 'train' else evaluate}"
        case errors.TextNotFoundError(name=name) if "--config" in options and name in presets():
            return f"to use the preset of this name: minigpt {command} --config {name}"
        case errors.TextNotFoundError(has_similar=False):
            return f"a text is one of these: {TEXT[:1].lower()}{TEXT[1:].rstrip('.')}"
        case errors.UnknownCharacterError() if command == "train":
            new = "a new run with --set data.tokenizer=byte reads any character"
            return f"to leave them out, add --unknown skip; the vocabulary of a run cannot change, but {new}"
        case errors.UnknownCharacterError() if "--unknown" in options:
            return "add --unknown skip or --unknown replace"
        case errors.DownloadError(destination=Path() as path):
            return f"download it yourself and save it as {shell_quote(path)}"
        case errors.TextMismatchError(checkpoint=Path() as path) if command == "eval":
            return f"to evaluate on a different text: minigpt eval {shell_quote(path)} --file TEXT"
        case errors.TextMismatchError() if command == "train":
            return "if the text has moved, add --set data.source=TEXT; if you changed it, start a new run"
        case errors.TextMismatchError():
            return "put the text of the run back where it was"
    return ""


def _run_hint(error: UserError, command: str) -> str:
    """Return a hint about a run or its checkpoints, or "" for other errors."""
    match error:
        case errors.RunNotFoundError(name=name) if run := run_named(name):  # where a folder of runs is expected
            board = f"to see its curves: minigpt board --in {shell_quote(run)}"
            return f"{escape(name)} is a run; {board if command == 'board' else 'to list all: minigpt runs'}"
        case errors.RunNotFoundError(name=name) if is_text(name) and command == "eval":
            return f"it is a text; to evaluate on it: minigpt eval --file {shell_quote(name)}"
        case errors.RunNotFoundError(name=name) if is_text(name):
            return f"it is a text; train on it first: minigpt train {shell_quote(name)}"
        case errors.RunNotFoundError(name=name) if command == "sample" and not re.fullmatch(r"[\w.+@/\\-]*", name):
            return f"to continue a text: --prompt {shell_quote(name)}"
        case errors.RunNotFoundError(name=name) if chapter := re.match(r"course-(\d+)", name):
            return f"to create it: minigpt course run {chapter[1]}"
        case errors.FilmError(run=Path() as run):
            return f"to look inside: minigpt inspect {run} --open"
        case errors.FilmError():
            return "to check your code: minigpt course check 9 mygpt.py"
        case errors.RunNotFoundError(names=()):
            return "runs are in the folder where you trained; to start one: minigpt train"
        case errors.RunNotFoundError(names=names):
            return f"available runs: {', '.join(map(shell_quote, names))}"
        case errors.RunExistsError(run=run, is_resumable=True) if command == "train":
            return f"to resume it: {resume_command(run)}, or choose a different --name"
        case errors.RunExistsError(run=run) if command == "course run":
            return f"rename {shell_quote(run)}, then try again"
        case errors.RunExistsError():
            return "choose a different --name"
        case errors.RunFinishedError(run=run, settings=settings):
            return f"to train longer: {resume_command(run, settings)}"
        case errors.CheckpointError(run=Path() as run) if not command.startswith("runs"):
            return f"to check its other checkpoints: minigpt runs verify {as_argument(run)}"
        case errors.NoOptimizerError(run=run):
            return f"to train it further, start a new run: minigpt train TEXT --from {as_argument(run)}"
        case errors.DivergedError():
            lower = "start a new run with a lower optim.lr"  # the same settings would diverge again
            return f"{_retry(error)}, or {lower}" if error.settings else lower
        case errors.TrainingError():
            return _retry(error)
    return ""


def _model_hint(error: UserError, options: Collection[str]) -> str:
    """Return a hint about a model, an export, memory or a device, or "" for other errors."""
    match error:
        case errors.NoAttentionError(checkpoint=path):
            return f"to see how it uses its past: minigpt eval {shell_quote(path)} --by-position"
        case errors.NoCounterpartError():
            return "every model fits --to safetensors"
        case errors.InsufficientMemoryError(settings=settings) if settings and "--set" in options:
            return f"try {set_options(settings)}, which changes only rounding and dropout"
        case errors.InsufficientMemoryError() if "--set" in options:
            return "try a smaller train.batch_size, model.context, model.n_embd or model.n_layer"
        case errors.DeviceError() if "--set" in options:
            return "try --set runtime.device=auto"
        case errors.DeviceError() if "--device" in options:
            return "try --device cpu"
    return ""


def _retry(error: errors.TrainingError) -> str:
    """Return a hint to resume the run, or to start it again, with settings that may help."""
    if error.saved_step is not None:
        return f"to resume from step {error.saved_step}: {resume_command(error.run, error.settings)}"
    if not error.run.is_dir():
        return "if its folder was moved, pass the new folder to minigpt train --resume"
    return f"try {set_options(error.settings)}" if error.settings else ""


def set_options(settings: Iterable[str]) -> str:
    """Return the --set options for `settings`, each KEY=VALUE."""
    return " ".join(f"--set {shell_quote(setting)}" for setting in settings)


def resume_command(run: Path, settings: Iterable[str] = ()) -> str:
    """Return the command that resumes `run` with changed `settings`, each KEY=VALUE."""
    size = os.environ.get("LOCAL_WORLD_SIZE")  # of this machine
    is_alone = not (is_one_of_several() and size == os.environ["WORLD_SIZE"])
    program = "minigpt" if is_alone else f"torchrun --nproc-per-node {size} -m minigpt"
    return " ".join(filter(None, (f"{program} train --resume {as_argument(run)}", set_options(settings))))


def run_named(name: str) -> Path | None:
    """Return `name`, a run or RUN@STEP, as a path. None if there is no such run."""
    from minigpt.storage.runs import split_step

    with suppress(OSError):
        return next((path for path in (RUNS / name, Path(name)) if is_run(Path(split_step(str(path))[0]))), None)
    return None


def is_text(name: str) -> bool:
    """Return whether `name` is a file, or names a built-in text or a download."""
    return name.startswith(("builtin:", "download:")) or os.path.isfile(os.path.expanduser(name))


def as_argument(run: Path) -> str:
    """Return the argument that names `run`: its name if it is in runs/, else its folder."""
    return shell_quote(run.name if run.parent == RUNS else run)


def shell_quote(word: object) -> str:
    """Quote `word` for this system's shell."""
    text = escape(word)
    return subprocess.list2cmdline([text]) if os.name == "nt" else shlex.quote(text)
