"""`minigpt import`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from minigpt.cli.hints import as_argument
from minigpt.cli.options import GROUP, EncodingOption
from minigpt.cli.output import notice
from minigpt.errors import escape

if TYPE_CHECKING:
    from minigpt.interop.imported import Found
    from minigpt.text.corpus import Scan

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
    from minigpt.interop import nanogpt
    from minigpt.interop.imported import read_text

    scan = read_text(text, encoding)
    _finish(nanogpt.read(checkpoint, scan), scan, text, encoding, name, text)


@import_app.command()
def stories(name: NameOption = None) -> None:
    """Import a trained model of builtin:stories, which is part of minigpt.

    It was trained with the preset `stories`. Its heads copy invented words, and find the name that "She" means.

    Examples:
      minigpt import stories
    """
    from minigpt.interop.shipped import create_run

    run = as_argument(create_run(name))
    notice(f"imported the model as run {escape(run)}", f"  sample:  minigpt sample {run}")
    notice(f"  look:    minigpt inspect {run} --open", f"  train:   minigpt train TEXT --from {run}")


@import_app.command()
def hf(
    folder: Annotated[Path, Argument(help="Folder with config.json, tokenizer.json, model.safetensors.")],
    text: Annotated[str | None, Option(help="The text that the model was trained on.", metavar="TEXT")] = None,
    name: NameOption = None,
    encoding: EncodingOption = "utf-8",
) -> None:
    """Import a folder of Hugging Face transformers, such as one that minigpt exported.

    The model must be a GPT-2, Apertus or Qwen3 with one token per character or byte.

    Examples:
      minigpt import hf my-model --text my.txt
    """
    from minigpt.interop import hf_import
    from minigpt.interop.imported import read_text

    found = hf_import.read(folder)
    if found.compared:
        difference, largest = found.compared
        notice(f"compared with transformers: logits up to {largest:.1f} differ by at most {difference:.2g}")
    _finish(found, read_text(text, encoding) if text else None, text, encoding, name, folder.resolve().name)


def _finish(found: "Found", scan: "Scan | None", text: str | None, encoding: str, name: str | None, stem: str) -> None:
    """Create the run, and print what to type next."""
    from minigpt.interop.imported import create_run

    known = found.about.fingerprint.split("+")[0] if found.about else ""
    if scan and known not in ("", scan.fingerprint):
        notice(f"{escape(text or '')} is not the text that the model was trained on")
    run = as_argument(create_run(found, scan, text, encoding, name, stem))
    notice(f"imported the model as run {escape(run)}", f"  sample:  minigpt sample {run}")
    notice(f"  measure: minigpt eval {run}{'' if scan else ' TEXT'}", f"  train:   minigpt train TEXT --from {run}")
