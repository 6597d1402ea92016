"""`minigpt import`."""

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from minigpt.cli.hints import as_argument
from minigpt.cli.options import GROUP, EncodingOption
from minigpt.cli.output import load_torch, notice

import_app = typer.Typer(**GROUP, help="Turn a model of another program, or a trained example, into a run.")

NameOption = Annotated[str | None, Option(help="Name of the run.", metavar="NAME")]


@import_app.command()
def nanogpt(
    checkpoint: Annotated[Path, Argument(help="nanoGPT's ckpt.pt.", metavar="CKPT")],
    text: Annotated[str, Option(help="The text that the model was trained on.", metavar="TEXT")],
    name: NameOption = None,
    encoding: EncodingOption = "utf-8",
) -> None:
    """Import a character-level checkpoint of nanoGPT.

    The vocabulary comes from the text: minigpt never opens meta.pkl, which could run code.

    Examples:
      minigpt import nanogpt out-shakespeare-char/ckpt.pt --text input.txt
    """
    load_torch()
    from minigpt.interop.nanogpt import create_run

    run = as_argument(create_run(checkpoint, text, encoding, name, notice))
    _notice(run, f"measure: minigpt eval {run}")


@import_app.command()
def stories(name: NameOption = None) -> None:
    """Import a trained model of builtin:stories, which is part of minigpt.

    It was trained with the preset `stories`. Its heads copy invented words, and find the name that "She" means.

    Examples:
      minigpt import stories
    """
    from minigpt.interop.shipped import create_run

    run = as_argument(create_run(name, notice))
    _notice(run, f"look:    minigpt inspect {run} --open")


def _notice(run: str, look: str) -> None:
    notice(f"imported the model as run {run}", f"  sample:  minigpt sample {run}", f"  {look}")
    notice(f"  train:   minigpt train TEXT --from {run}")
