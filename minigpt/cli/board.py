"""`minigpt board`."""

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from minigpt.errors import UserError, escape


def board(
    folder: Annotated[Path, Argument(help="Where the runs are.", metavar="FOLDER")] = Path("runs"),
    port: Annotated[int, Option(min=0, max=65535, help="Port to serve on; 0 takes a free one.")] = 6006,
    host: Annotated[str, Option(help="Address to serve on.", metavar="NAME")] = "localhost",
) -> None:
    """Serve TensorBoard on the runs."""
    from tensorboard import default, program

    if not folder.is_dir():
        hint = "; 'minigpt train' makes it" if folder == Path("runs") else ""
        raise UserError(f"there is no folder {escape(folder.absolute())}{hint}")
    server = program.TensorBoard(plugins=default.get_plugins())
    pictures = "images=200"  # else TensorBoard keeps ten of each tag, by chance
    arguments = ["--logdir", str(folder), "--port", str(port), "--host", host, "--samples_per_plugin", pictures]
    server.configure(argv=["minigpt board", *arguments])
    raise typer.Exit(server.main())
