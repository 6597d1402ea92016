"""`minigpt board`."""

from typing import Annotated

import typer
from typer import Option

from minigpt.cli.options import RunsFolderOption
from minigpt.cli.output import notice
from minigpt.errors import RunNotFoundError, escape
from minigpt.paths import RUNS


def board(
    folder: RunsFolderOption = RUNS,
    port: Annotated[
        int | None,
        Option(min=0, max=65535, help="Port to serve on (default: the first free port from 6006).", metavar="PORT"),
    ] = None,
    host: Annotated[str, Option(help="Address to serve on.", metavar="NAME")] = "localhost",
) -> None:
    """Show training curves in TensorBoard.

    Examples:
      minigpt board
      minigpt board --in elsewhere/runs
    """
    from tensorboard import default, program

    if not folder.is_dir():
        raise RunNotFoundError(f"folder {escape(folder.absolute())} does not exist", name=str(folder))
    program._DATA_SERVER_ADVISORY_MESSAGE = ""  # no note about experimental loading
    server = program.TensorBoard(plugins=default.get_plugins())
    options = [f"--logdir={folder}", f"--host={host}"]
    options += [] if port is None else [f"--port={port}"]  # by default, TensorBoard looks for a free port
    notice("TensorBoard smooths curves; to read their values, set Smoothing to 0")
    server.configure(argv=["minigpt board", *options])
    raise typer.Exit(int(server.main() != 0))
