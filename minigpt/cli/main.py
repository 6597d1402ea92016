"""The command line: parse, import inside the function, call one function, print.

Results go to stdout, everything else to stderr. A UserError is one line and exit code 1.
"""

import atexit
import gc
import os
import sys
import traceback
from typing import Annotated

import typer
from typer import Option
from typer.exceptions import TyperException

from minigpt.cli.attention import attention
from minigpt.cli.bench import bench_app
from minigpt.cli.board import board
from minigpt.cli.claims import claims
from minigpt.cli.config import config_app
from minigpt.cli.data import data_app
from minigpt.cli.evaluate import evaluate
from minigpt.cli.inspect import inspect
from minigpt.cli.options import PLAIN, SettingsInHelp
from minigpt.cli.runs import runs
from minigpt.cli.sample import sample
from minigpt.cli.train import train
from minigpt.errors import UserError, escape, reason

app = typer.Typer(
    **PLAIN,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(cls=SettingsInHelp)(train)
app.command()(sample)
app.command("eval")(evaluate)
app.command()(attention)
app.command()(inspect)
app.command()(claims)
app.command()(runs)
app.command()(board)
app.add_typer(data_app, name="data")
app.add_typer(config_app, name="config")
app.add_typer(bench_app, name="bench")


def main() -> None:
    """Run the command line; the entry point of `minigpt` and `python -m minigpt`."""
    # torch's import makes 165,000 objects, none of them garbage: not looking for it there saves 0.2 s, at the end 0.4.
    gc.set_threshold(10_000)
    atexit.register(gc.freeze)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever started this
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - for as long as the process lives
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # Windows consoles default to a code page that cannot print most of Unicode.
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
            if not stream.isatty():  # there Windows adds carriage returns, which a text does not have
                stream.reconfigure(newline="\n")
    try:
        try:
            # A prompt may hold * and ~; what names texts is expanded by corpus.py.
            code = app(standalone_mode=False, windows_expand_args=False)
        finally:
            print(end="", flush=True)
        sys.exit(code or 0)
    except TyperException as error:
        message = error.format_message()
        is_help = message.startswith("Usage:")  # of a group of commands that was given none
        print(message if is_help else f"Error: {escape(_usage(error))}", file=sys.stderr)
        sys.exit(error.exit_code)
    except UserError as error:
        _show_traceback()
        print(f"minigpt: {escape(error)}", file=sys.stderr)
        sys.exit(1)
    except (MemoryError, RuntimeError) as error:
        from minigpt.model.memory import is_out_of_memory

        if not is_out_of_memory(error):
            raise
        _show_traceback()
        print("minigpt: out of memory; nothing that was saved is lost", file=sys.stderr)
        sys.exit(1)
    except OSError as error:  # the system refuses: a full disk, no permission, a reader such as `head` that has gone
        _show_traceback()
        if not isinstance(error, BrokenPipeError):
            where = f"{escape(error.filename)}: " if error.filename else ""
            print(f"minigpt: {where}{reason(error)}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what could not be written is not tried again at exit
        sys.exit(1)


def _usage(error: TyperException) -> str:
    """Return in one line what is wrong with a command line, and where to read on."""
    from minigpt.config.resolve import flatten, resolve

    message, context = error.format_message().rstrip("."), getattr(error, "ctx", None)
    option = (getattr(error, "option_name", None) or "").lstrip("-").replace("-", "_")
    takes_settings = context and any(parameter.name == "set_" for parameter in context.command.params)
    settings = [key for key in flatten(resolve().config) if key.endswith(f".{option}")] if takes_settings else []
    if option and settings:
        message += f"; a setting goes by --set {settings[0]}=VALUE"
    return f"{message}; see {context.command_path} --help" if context else message


def _show_traceback() -> None:
    if "--debug" in sys.argv[1:2]:
        traceback.print_exc()


def _print_version(wanted: bool) -> None:
    from minigpt import __version__

    if wanted:
        print(f"minigpt {__version__}")
        raise typer.Exit


@app.callback()
def _minigpt(
    version: Annotated[
        bool, Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
    debug: Annotated[bool, Option("--debug", help="Show where an error came from.")] = False,
) -> None:
    """Train your own character-level GPT on any text, and look inside it."""
