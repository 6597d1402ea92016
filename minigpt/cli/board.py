"""`minigpt board`."""

import socket
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from minigpt.cli.output import notice
from minigpt.errors import UserError, escape

IMAGES = 200
"""Number of images that TensorBoard shows for each tag. Its default is ten, chosen at random."""


def board(
    folder: Annotated[Path, Argument(help="Folder that contains the runs.", metavar="FOLDER")] = Path("runs"),
    port: Annotated[int, Option(min=0, max=65535, help="Port to serve on; 0 picks a free one.", metavar="PORT")] = 6006,
    host: Annotated[str, Option(help="Address to serve on.", metavar="NAME")] = "localhost",
) -> None:
    """Show training curves in TensorBoard.

    Examples:
      minigpt board
      minigpt board --port 0         on any free port
    """
    from tensorboard import default, program

    if not folder.is_dir():
        raise UserError(f"folder {escape(folder.absolute())} does not exist; to start a run: minigpt train")
    if port and _is_taken(host, port):
        raise UserError(f"port {port} is in use; for a free one: --port 0")
    server = program.TensorBoard(plugins=default.get_plugins())
    options = [f"--logdir={folder}", f"--port={port}", f"--host={host}", f"--samples_per_plugin=images={IMAGES}"]
    notice("TensorBoard smooths curves; to read their values, set Smoothing to 0")
    server.configure(argv=["minigpt board", *options])
    raise typer.Exit(server.main())


def _is_taken(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=1).close()
    except OSError:
        return False
    return True
