"""`minigpt import`."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from minigpt.cli.hints import as_argument, shell_quote
from minigpt.cli.options import EncodingOption, JsonOption
from minigpt.cli.output import json_text, load_torch, notice, write
from minigpt.errors import UserError, escape


def import_(
    checkpoint: Annotated[str, Argument(help="nanoGPT's ckpt.pt, or 'stories'.", metavar="CHECKPOINT")],
    file: Annotated[str | None, Option(help="The text that the model was trained on.", metavar="SOURCE")] = None,
    name: Annotated[str | None, Option(help="Name of the run.", metavar="NAME")] = None,
    encoding: EncodingOption = "utf-8",
    as_json: JsonOption = False,
) -> None:
    """Turn a character-level checkpoint of nanoGPT, or the trained example `stories`, into a run.

    The vocabulary of a nanoGPT model comes from its text: minigpt never opens meta.pkl, which could run code. The
    example was trained with the preset `stories`. Some heads copy invented words, or find the name that "She" means.

    Examples:
      minigpt import stories
      minigpt import out-shakespeare-char/ckpt.pt --file input.txt
    """
    if checkpoint == "stories":
        if file is not None:
            raise UserError("the example has its own text; leave out --file")
        from minigpt.interop import shipped

        folder = shipped.create_run(name, notice)
    else:
        if file is None:
            command = f"minigpt import {shell_quote(checkpoint)} --file TEXT"
            raise UserError(f"the vocabulary comes from the text that the model was trained on; name it: {command}")
        load_torch()
        from minigpt.interop import nanogpt

        folder = nanogpt.create_run(Path(checkpoint), file, encoding, name, notice)
    run = as_argument(folder)
    if as_json:
        write(json_text({"run": folder.name, "folder": escape(folder)}))
        return
    look = f"look:    minigpt inspect {run} --open" if file is None else f"measure: minigpt eval {run}"
    notice(f"imported the model as run {run}", f"  sample:  minigpt sample {run}", f"  {look}")
    notice(f"  train:   minigpt train TEXT --from {run}")
