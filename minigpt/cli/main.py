"""The entry point of the command line.

Results go to stdout, everything else to stderr. An error is one line.
Exit codes: 0 for success, 1 for an error, 2 for wrong usage, 128 plus the signal after a signal.
"""

import atexit
import gc
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer import Option
from typer.exceptions import TyperException

from minigpt.cli.attention import attention
from minigpt.cli.board import board
from minigpt.cli.claims import claims
from minigpt.cli.compare import compare
from minigpt.cli.config import config_app
from minigpt.cli.course import course_app
from minigpt.cli.data import data_app
from minigpt.cli.evaluate import evaluate
from minigpt.cli.export import export
from minigpt.cli.hints import error_line
from minigpt.cli.import_ import import_app
from minigpt.cli.inspect import inspect
from minigpt.cli.options import GROUP
from minigpt.cli.plan import plan
from minigpt.cli.runs import runs
from minigpt.cli.sample import sample
from minigpt.cli.train import train
from minigpt.errors import UserError
from minigpt.training.signals import STDERR, handle

BROKEN_PIPE = 128 + getattr(signal, "SIGPIPE", 13)  # Windows has no SIGPIPE
"""The exit code if the reader of the output, such as `head`, has exited: that of a program which the signal ends."""

app = typer.Typer(**GROUP, context_settings={"help_option_names": ["-h", "--help"]})
PANELS: dict[str, dict[str, Any]] = {
    "Train": {"train": train, "plan": plan, "board": board},
    "Use a model": {"sample": sample, "eval": evaluate, "compare": compare, "export": export},
    "Look inside": {"attention": attention, "inspect": inspect, "claims": claims, "course": course_app},
    "Manage": {"runs": runs, "import": import_app, "data": data_app, "config": config_app},
}
for panel, commands in PANELS.items():
    for name, command in commands.items():
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name, rich_help_panel=panel)
        else:
            app.command(name, rich_help_panel=panel)(command)


def main() -> None:
    """Run the command line. `minigpt` and `python -m minigpt` start here."""
    # Importing torch creates 165,000 objects, none of them garbage. Skipping them in collections saves 0.2 s.
    gc.set_threshold(10_000)
    atexit.register(gc.freeze)
    _prepare_streams()
    handle(signal.SIGINT)
    warnings.simplefilter("ignore", RuntimeWarning)  # NumPy's: results are checked for NaN and infinity instead
    try:
        try:
            _check_current_folder()
            code = app(standalone_mode=False, windows_expand_args=False)  # text/sources.py expands * and ~
        finally:
            print(end="", flush=True)
    except SystemExit as error:
        is_broken = isinstance(error.__context__, BrokenPipeError)  # for which Typer and Rich exit with code 1
        code = BROKEN_PIPE if is_broken else error.code
    except KeyboardInterrupt:  # typer handles it only in a command
        code = 128 + signal.SIGINT
    except Exception as error:
        line = error_line(error, _command_name(sys.argv[1:]))
        if line is None:
            raise
        if line and "--debug" in sys.argv[1:2]:
            traceback.print_exc()
        if line:
            STDERR.write(f"{line}\n")
        if isinstance(error, OSError):  # stdout may be broken; do not fail again when Python flushes it at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = error.exit_code if isinstance(error, TyperException) else 1
        if isinstance(error, BrokenPipeError):
            code = BROKEN_PIPE
    sys.exit(code or 0)


def _check_current_folder() -> None:
    """Raise UserError if the current folder was deleted: PyTorch would crash."""
    try:
        os.getcwd()
    except FileNotFoundError as error:
        raise UserError("the current folder no longer exists; change to another folder") from error


def _command_name(arguments: Sequence[str]) -> str:
    """Return the command in `arguments`, such as "train" or "data info"."""
    words = [word for word in arguments if not word.startswith("-")]
    return " ".join(words[: 2 if words[:1] in (["data"], ["config"], ["import"]) else 1])


def _prepare_streams() -> None:
    """Replace closed streams, and write UTF-8 on every system."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # the parent process closed it
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - stays open until the process exits
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # Windows consoles default to a code page that cannot print most of Unicode.
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
            if not stream.isatty():  # keep Windows from adding carriage returns to files and pipes
                stream.reconfigure(newline="\n")


def _print_version(is_wanted: bool) -> None:
    from minigpt import __version__

    if is_wanted:
        print(f"minigpt {__version__}")
        raise typer.Exit


@app.callback()
def _minigpt(
    version: Annotated[
        bool,
        Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True),
    ] = False,
    debug: Annotated[bool, Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Train a small GPT on your own text, on a laptop, in minutes; then see what its heads attend to.

    Examples:
      minigpt train            train on a built-in text
      minigpt train my.txt     train on your own text
      minigpt sample           continue a text with that model
      minigpt inspect --open   look inside it, in the browser
      minigpt board            show the training curves

    For the options of a command: minigpt train --help
    """
