"""`minigpt bench`."""

from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from minigpt.cli.options import (
    GROUP,
    TEXT,
    ConfigOption,
    EncodingOption,
    JsonOption,
    RoundsOption,
    SamplesOption,
    SetOption,
    only_config,
)
from minigpt.cli.output import json_text, notice, table, write
from minigpt.errors import escape

if TYPE_CHECKING:
    from minigpt.bench.report import Report

bench_app = typer.Typer(**GROUP, help="Compare speed and memory with alternatives.")


@bench_app.command("train")
def bench_train(
    text: Annotated[list[str] | None, Argument(help=TEXT, metavar="TEXT")] = None,
    config: ConfigOption = None,
    set_: SetOption = None,
    rounds: RoundsOption = 5,
    seconds: Annotated[float, Option(help="Approximate time per side and round, in seconds.", metavar="S")] = 3.0,
    as_json: JsonOption = False,
) -> None:
    """Compare the training steps of `minigpt train` with a plain PyTorch loop in float32."""
    from minigpt.bench import train

    _print_report(train.run(text or [], only_config(config), set_ or [], rounds, seconds, notice), as_json)


@bench_app.command("sample")
def bench_sample(
    run: Annotated[str | None, Argument(help="A trained run. Default: a new model.", metavar="RUN")] = None,
    set_: SetOption = None,
    num_samples: SamplesOption = 1,
    length: Annotated[
        int | None, Option(min=1, help="Characters per text. Default: 256, or the context.", metavar="N")
    ] = None,
    rounds: RoundsOption = 5,
    as_json: JsonOption = False,
) -> None:
    """Compare sampling with transformers, llama.cpp and ONNX Runtime, where they are installed."""
    from minigpt.bench import sample

    _print_report(sample.run(run, set_ or [], num_samples, length, rounds, notice), as_json)


@bench_app.command("data")
def bench_data(
    text: Annotated[list[str] | None, Argument(help=f"{TEXT} Default: two generated texts.", metavar="TEXT")] = None,
    encoding: EncodingOption = "utf-8",
    rounds: RoundsOption = 3,
    as_json: JsonOption = False,
) -> None:
    """Compare scanning and encoding a text with plain Python."""
    from minigpt.bench import data

    _print_report(data.run(text or [], encoding, rounds, notice), as_json)


def _print_report(results: "Report", as_json: bool) -> None:
    from minigpt.bench.report import tables

    if as_json:
        write(json_text(results))
        return
    for head, rows, lines in tables(results):
        table(head, rows)
        print(*map(escape, lines), "", sep="\n")
    machine = results["machine"]
    print(f"{machine['processor']}, {machine['cores']} cores, torch {machine['torch']}, {results['date']}")
