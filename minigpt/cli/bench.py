"""`minigpt bench`."""

from typing import Annotated, Any

import typer
from typer import Argument, Option

from minigpt.cli.options import PLAIN, TEXT, ConfigOption, EncodingOption, JsonOption, RoundsOption, SetOption
from minigpt.cli.output import json_text, notice, table, write
from minigpt.errors import escape

bench_app = typer.Typer(**PLAIN, help="Measure how fast it is here, against what one would use instead.")


@bench_app.command("train")
def bench_train(
    text: Annotated[list[str] | None, Argument(help=TEXT, metavar="TEXT")] = None,
    config: ConfigOption = None,
    set_: SetOption = None,
    rounds: RoundsOption = 5,
    seconds: Annotated[float, Option(help="About how long a side works in a round.", metavar="S")] = 3.0,
    as_json: JsonOption = False,
) -> None:
    """Measure training steps, as `minigpt train` would make them, against a plain loop in float32."""
    from minigpt.bench import train

    _report_bench(train.run(text or [], config, set_ or [], rounds, seconds, notice), as_json)


@bench_app.command("sample")
def bench_sample(
    run: Annotated[str | None, Argument(help="A trained model. Default: a new one.", metavar="RUN")] = None,
    set_: SetOption = None,
    streams: Annotated[int, Option(min=1, help="How many texts are drawn at once.", metavar="N")] = 1,
    length: Annotated[
        int | None, Option(min=1, help="Characters to draw in each. Default: 256, or the context.", metavar="N")
    ] = None,
    rounds: RoundsOption = 5,
    as_json: JsonOption = False,
) -> None:
    """Measure drawing text: with guesses ahead (of a trained RUN), with the cache, without, and by transformers."""
    from minigpt.bench import sample

    _report_bench(sample.run(run, set_ or [], streams, length, rounds, notice), as_json)


@bench_app.command("data")
def bench_data(
    text: Annotated[list[str] | None, Argument(help=f"{TEXT} Default: two that are made.", metavar="TEXT")] = None,
    encoding: EncodingOption = "utf-8",
    rounds: RoundsOption = 3,
    as_json: JsonOption = False,
) -> None:
    """Measure scanning and encoding a text against plain Python that reads it whole."""
    from minigpt.bench import data

    _report_bench(data.run(text or [], encoding, rounds, notice), as_json)


def _report_bench(found: dict[str, Any], as_json: bool) -> None:
    from minigpt.bench.sides import tables

    if as_json:
        write(json_text(found))
        return
    for head, rows, lines in tables(found):
        table(head, rows)
        print(*map(escape, lines), "", sep="\n")
    machine = found["machine"]
    print(f"{machine['processor']}, {machine['cores']} cores, torch {machine['torch']}, {found['date']}")
