"""`minigpt data`, `config`, `runs` and `board`: what there is."""

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from minigpt.cli.options import PLAIN, TEXT, ConfigOption, EncodingOption, JsonOption, SetOption
from minigpt.cli.output import json_text, notice, table, write
from minigpt.errors import UserError, shown

data_app = typer.Typer(**PLAIN, help="List, describe and fetch texts.")
config_app = typer.Typer(**PLAIN, help="List presets, explain settings, print the schema.")


@data_app.command("list")
def data_list() -> None:
    """List the texts that have names."""
    from minigpt.text.download import downloads
    from minigpt.text.sources import BUILTINS

    rows = [(f"builtin:{name}", what, "always here") for name, what in BUILTINS.items()]
    for name, entry in downloads().items():
        where = "downloaded" if entry.is_here else f"{entry.bytes / 1e6:.1f} MB to download"
        rows.append((f"download:{name}", entry.description, where))
    table(("name", "text", ""), rows)


@data_app.command("info")
def data_info(
    text: Annotated[list[str], Argument(help=TEXT, metavar="TEXT")],
    encoding: EncodingOption = "utf-8",
    as_json: JsonOption = False,
) -> None:
    """Describe a text: its size, its characters, and the settings that fit it."""
    from minigpt.config.presets import fit
    from minigpt.text.sources import open_corpus, scan

    corpus = open_corpus(text, encoding)
    found = scan(corpus)
    notice(*corpus.notices)
    _, fitted = fit(found.characters, gpu=False)
    counts = dict(sorted(found.counts.items(), key=lambda item: -item[1]))
    if as_json:
        facts = {"name": corpus.name, "characters": found.characters, "distinct": len(counts)}
        write(json_text({**facts, "fingerprint": found.fingerprint, "counts": counts, "fitted": fitted}))
        return
    rare = sorted(char for char, count in counts.items() if count < 5)
    print(f"characters   {found.characters:,}")
    print(f"distinct     {len(counts):,}")
    print(f"commonest    {_listed(list(counts))}")
    print(f"rare         {len(rare):,} stand fewer than 5 times{': ' if rare else ''}{_listed(rare)}")
    if "\r" in counts:
        print(f"line ends    {counts[chr(13)]:,} carriage returns, kept as they are")
    print(f"fingerprint  {found.fingerprint}")
    print(f"fitted (CPU) {', '.join(f'{key}={value}' for key, value in fitted.items())}")


@data_app.command("get")
def data_get(name: Annotated[str, Argument(help="One of the downloads of `minigpt data list`.")]) -> None:
    """Download a text into the cache, check it, and print where it is and under which terms."""
    from minigpt.text.download import download, downloads

    name = name.removeprefix("download:")
    path = download(name)
    notice(downloads()[name].licence)
    print(path)


@config_app.command("list")
def config_list() -> None:
    """List the presets."""
    from minigpt.config.presets import presets

    table(("preset", "what it is"), list(presets().items()))


@config_app.command("show")
def config_show(config: ConfigOption = None, set_: SetOption = None) -> None:
    """Print every setting with its value and where that comes from."""
    from minigpt.config.presets import read_layer
    from minigpt.config.resolve import explain, parse_overrides, resolve

    layers = [read_layer(config)] if config is not None else []
    table(("setting", "value", "from"), explain(resolve(*layers, parse_overrides(set_ or []))))


@config_app.command("schema")
def config_schema() -> None:
    """Print the JSON schema of a configuration file, for an editor to complete and check it."""
    from minigpt.config.resolve import schema

    write(json_text(schema()))


def runs(
    verify: Annotated[bool, Option("--verify", help="Check all that the runs keep on disk.")] = False,
    as_json: JsonOption = False,
) -> None:
    """List the runs in runs/, the one touched last at the end."""
    from minigpt.storage.runs import RUNS, summaries

    if verify:
        _verify_runs(as_json)
        return
    found = list(summaries())
    if as_json:
        write(json_text([asdict(row) for row in found]))
        return
    if not found:
        raise UserError(f"there is no run in {RUNS.absolute()} yet; 'minigpt train' starts one")
    rows = [
        (
            row.name,
            _in_short(row.corpus),
            f"{row.parameters:,}" if row.parameters is not None else "",
            str(row.step) if row.step is not None else "no checkpoint",
            f"{row.best_loss:.4f}" if row.best_loss is not None else "",
            _age(time.time() - row.touched),
        )
        for row in found
    ]
    table(("run", "corpus", "parameters", "step", "best loss", "age"), rows)


def _verify_runs(as_json: bool) -> None:
    from minigpt.storage.runs import RUNS
    from minigpt.storage.verify import verify_runs

    found = list(verify_runs())
    if as_json:
        write(json_text([asdict(one) for one in found]))
    elif not found:
        notice(f"there is no run in {RUNS.absolute()}: nothing to check")
    else:
        table(("run", "what", ""), [(one.run, one.what, one.problem or "intact") for one in found])
    if bad := sum(one.problem is not None for one in found):
        raise UserError(f"{bad} of {len(found)} are not as they were written")


def board(
    folder: Annotated[Path, Argument(help="Where the runs are.", metavar="FOLDER")] = Path("runs"),
    port: Annotated[int, Option(min=0, max=65535, help="Port to serve on; 0 takes a free one.")] = 6006,
    host: Annotated[str, Option(help="Address to serve on.", metavar="NAME")] = "localhost",
) -> None:
    """Serve TensorBoard on the runs."""
    from tensorboard import default, program

    if not folder.is_dir():
        hint = "; 'minigpt train' makes it" if folder == Path("runs") else ""
        raise UserError(f"there is no folder {shown(folder.absolute())}{hint}")
    server = program.TensorBoard(plugins=default.get_plugins())
    pictures = "images=200"  # else TensorBoard keeps ten of each tag, by chance
    arguments = ["--logdir", str(folder), "--port", str(port), "--host", host, "--samples_per_plugin", pictures]
    server.configure(argv=["minigpt board", *arguments])
    raise typer.Exit(server.main())


def _listed(chars: Sequence[str]) -> str:
    return " ".join(map(repr, chars[:12])) + (" ..." if len(chars) > 12 else "")


def _in_short(corpus: str) -> str:
    """Return what a run was trained on, fit for a column."""
    first, *others = corpus.split(" + ")
    name = f"{first} + {len(others)} more" if others and len(corpus) > 40 else corpus
    return name if len(name) <= 40 else f"...{name[-37:]}"


def _age(seconds: float) -> str:
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"
