"""`minigpt export`."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Option

from minigpt.cli.hints import shell_quote
from minigpt.cli.options import JsonOption, RunArgument
from minigpt.cli.output import json_text, load_torch, notice, table, waiting, write
from minigpt.errors import UserError, count, escape

if TYPE_CHECKING:
    from minigpt.interop.export import Agreement


def export(
    run: RunArgument = "last",
    *,
    to: Annotated[
        Literal["gguf", "hf", "onnx", "safetensors"],
        Option(help="Format: gguf, hf, onnx or safetensors.", metavar="FORMAT"),
    ],
    out: Annotated[Path | None, Option("--out", "-o", help="Folder. Default: RUN-FORMAT.", metavar="FOLDER")] = None,
    as_json: JsonOption = False,
) -> None:
    """Write a model for another program, then compare that program's results with minigpt's.

    hf: Hugging Face transformers. gguf: llama.cpp. onnx: ONNX Runtime. safetensors: your own code.

    Examples:
      minigpt export --to hf
      minigpt export mine@last --to safetensors -o weights
    """
    if str(out) == "-":
        raise UserError("cannot write an export to standard output, because it is a folder; name one: -o FOLDER")
    load_torch()
    from minigpt.interop.card import short_prompt
    from minigpt.interop.export import FORMATS, check
    from minigpt.interop.export import export as write_export
    from minigpt.storage.checkpoint import load_checkpoint

    loaded = load_checkpoint(run)
    path = out or Path(f"{loaded.run_name}-{to}")
    write_export(loaded, to, path)
    notice(f"wrote {escape(path)} from {escape(loaded.path)}")
    sizes = {file.name: file.stat().st_size for file in sorted(path.iterdir())}
    with waiting(f"comparing with {FORMATS[to].PROGRAM}"):
        agreement = check(loaded, to, path)
    usage = FORMATS[to].usage(path, short_prompt(loaded.tokenizer))
    if as_json:
        result = {"agreement": asdict(agreement) if agreement else None, "usage": usage}
        write(json_text({"checkpoint": escape(loaded.path), "folder": escape(path), "bytes": sizes, **result}))
        return
    table(("file", "bytes"), [(name, f"{size:,}") for name, size in sizes.items()])
    print()
    _print_agreement(agreement, FORMATS[to].PROGRAM, FORMATS[to].PACKAGE)
    print(f"\nTo use it:\n\n{usage}")


def _print_agreement(agreement: "Agreement | None", program: str, package: str) -> None:
    if agreement is None:
        print(f"not compared: {program} is missing or too old; to install it: pip install -U {shell_quote(package)}")
        return
    print(f"compared with        {program}, for {count(agreement.tokens, 'token')}")
    print(f"largest difference   {agreement.difference:.2g}, of logits up to {agreement.largest:.1f}")
    print(f"greedy text          {'equal' if agreement.same_text else 'not equal'}")
