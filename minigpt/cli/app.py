"""The commands and groups of the command line."""

from typing import Annotated, Any

import typer
from typer import Option

from minigpt.cli.board import board
from minigpt.cli.compare import compare
from minigpt.cli.config import config_app
from minigpt.cli.course import course_app
from minigpt.cli.data import data_app
from minigpt.cli.evaluate import evaluate
from minigpt.cli.export import export
from minigpt.cli.import_ import import_
from minigpt.cli.inspect import inspect
from minigpt.cli.options import GROUP, HELP, Command
from minigpt.cli.runs import runs_app
from minigpt.cli.sample import sample
from minigpt.cli.train import train

app = typer.Typer(**GROUP, context_settings=HELP)
PANELS: dict[str, dict[str, Any]] = {
    "Train": {"train": train, "board": board},
    "Use a model": {"sample": sample, "eval": evaluate, "compare": compare, "export": export, "import": import_},
    "Look inside": {"inspect": inspect, "course": course_app},
    "Manage": {"runs": runs_app, "data": data_app, "config": config_app},
}
for panel, commands in PANELS.items():
    for name, command in commands.items():
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name, rich_help_panel=panel)
        else:
            app.command(name, rich_help_panel=panel, cls=Command)(command)


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
    debug: Annotated[bool, Option("--debug", help="Show the traceback of an error, as MINIGPT_DEBUG=1 does.")] = False,
) -> None:
    """Train a small GPT on your own text, then see what its heads attend to.

    Examples:
      minigpt train            train on a built-in text
      minigpt train my.txt     train on your own text
      minigpt sample           continue a text with that model
      minigpt inspect --open   look inside it, in the browser
      minigpt board            show the training curves

    For the options of a command: minigpt train --help
    """
