"""The entry point of the command line.

Results go to stdout, everything else to stderr. An error is one line; several wrong settings have a line each.
Exit codes: 0 for success, 1 for an error, 2 for wrong usage, 128 plus the signal after a signal.
"""

import atexit
import gc
import os
import signal
import sys
import warnings
from collections.abc import Sequence
from typing import Any

from minigpt.world import rank, set_variables

BROKEN_PIPE = 128 + getattr(signal, "SIGPIPE", 13)  # Windows has no SIGPIPE
"""The exit code of a program that SIGPIPE ends, for when the reader of the output, such as `head`, has exited."""


def main() -> None:
    """Run the command line. `minigpt` and `python -m minigpt` start here.

    Before and after a command, Ctrl-C ends the process at once: there is nothing to undo.
    """
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:  # set by a shell script for a background job
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    # Importing torch creates 165,000 objects, none of them garbage. Fewer collections save 0.2 s.
    gc.set_threshold(10_000)
    atexit.register(gc.freeze)
    set_variables()
    _prepare_streams()
    import minigpt.cli.app  # noqa: F401 - before Ctrl-C is handled
    from minigpt.training.signals import STDERR, handle, interrupt

    warnings.simplefilter("ignore", RuntimeWarning)  # NumPy's: results are checked for NaN and infinity instead
    arguments = sys.argv[1:]
    if "help" in (arguments if arguments[:1] == ["--debug"] else arguments[:1])[:2]:
        arguments.remove("help")  # `minigpt help train` is `minigpt train --help`
        arguments.append("--help")
    handle(signal.SIGINT)
    try:
        code = _run(arguments)
    except KeyboardInterrupt:
        if not rank():  # once for all processes of a run
            STDERR.write("minigpt: stopped by Ctrl-C\n")
        code = 128 + signal.SIGINT
    finally:
        if signal.getsignal(signal.SIGINT) == interrupt:  # else a signal was handled, and may come in a pair
            signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(code)


def _run(arguments: list[str]) -> int:
    """Run a command, print its error as one line, and return the exit code."""
    from typer.exceptions import TyperException

    from minigpt.cli.app import app
    from minigpt.cli.hints import error_line
    from minigpt.cli.options import HELP, options_of
    from minigpt.training.signals import STDERR

    command, names = _find(arguments)
    try:
        try:
            is_help = arguments[len(names) :] in [[option] for option in HELP["help_option_names"]]
            if is_help:  # without parsing the options of the program, which imports pydantic for 0.1 s
                code = command.main(["--help"], " ".join(("minigpt", *names)), standalone_mode=False, **HELP)
            else:
                code = app(arguments, prog_name="minigpt", standalone_mode=False)
        finally:
            print(end="", flush=True)
    except SystemExit as error:
        if not isinstance(error.__context__, BrokenPipeError):  # for which Typer and Rich exit with code 1
            raise
        code = BROKEN_PIPE
    except Exception as error:
        line = error_line(error, " ".join(names), options_of(command))
        if line is None:
            raise
        if (
            line
            and ("--debug" in arguments[:1] or os.environ.get("MINIGPT_DEBUG") == "1")
            and not isinstance(error, TyperException)
        ):
            import traceback

            traceback.print_exc()
        if line:
            STDERR.write(f"{line}\n")
        if isinstance(error, OSError):  # stdout may be broken; do not fail again when Python flushes it at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        if isinstance(error, BrokenPipeError):
            return BROKEN_PIPE
        return error.exit_code if isinstance(error, TyperException) else 1
    if code == 128 + signal.SIGINT:  # typer turns KeyboardInterrupt into this code; commands raise SystemExit for it
        raise KeyboardInterrupt
    return code or 0


def _find(arguments: Sequence[str]) -> tuple[Any, list[str]]:
    """Return the command in `arguments`, and its names, such as "data" and "info"."""
    from typer.main import get_command

    from minigpt.cli.app import app

    command: Any = get_command(app)
    names: list[str] = []
    for word in arguments:
        if below := getattr(command, "commands", {}).get(word):
            command = below
            names.append(word)
    return command, names


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
