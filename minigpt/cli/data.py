"""`minigpt data`."""

from collections.abc import Sequence
from typing import Annotated

import typer
from typer import Argument

from minigpt.cli.options import GROUP, TEXT, EncodingOption, JsonOption
from minigpt.cli.output import json_text, notice, table, wrapped, write

data_app = typer.Typer(**GROUP, help="List, describe and download texts.")


@data_app.command("list")
def data_list(as_json: JsonOption = False) -> None:
    """List the built-in texts and the available downloads."""
    from minigpt.text.download import downloads
    from minigpt.text.sources import BUILTINS

    rows = [(f"builtin:{name}", what, "built in") for name, what in BUILTINS.items()]
    for name, entry in downloads().items():
        where = "downloaded" if entry.is_cached else f"{entry.bytes / 1e6:.1f} MB to download"
        rows.append((f"download:{name}", entry.description, where))
    if as_json:
        write(json_text([dict(zip(("name", "text", "status"), row, strict=True)) for row in rows]))
        return
    table(("name", "text", "size or status"), rows)


@data_app.command("info")
def data_info(
    text: Annotated[list[str], Argument(help=TEXT, metavar="TEXT")],
    encoding: EncodingOption = "utf-8",
    as_json: JsonOption = False,
) -> None:
    """Print the size and characters of a text, and the settings that fit it.

    Examples:
      minigpt data info my.txt
    """
    from minigpt.text.corpus import scan
    from minigpt.text.sources import open_corpus
    from minigpt.training.fit import WORK, fit

    corpus = open_corpus(text, encoding)
    scanned = scan(corpus)
    notice(*corpus.notices)
    counts = dict(sorted(scanned.counts.items(), key=lambda item: -item[1]))
    fitted = fit(scanned.characters, len(counts), WORK["cpu"])
    if as_json:
        facts = {"name": corpus.name, "characters": scanned.characters, "distinct": len(counts)}
        write(json_text({**facts, "fingerprint": scanned.fingerprint, "counts": counts, "fitted": fitted}))
        return
    rare = sorted(char for char, count in counts.items() if count < 5)
    print(f"characters   {scanned.characters:,}")
    print(f"distinct     {len(counts):,}")
    print(f"most common  {_listed(list(counts))}")
    print(f"rare         {len(rare):,} occur fewer than 5 times{': ' if rare else ''}{_listed(rare)}")
    print(f"fingerprint  {scanned.fingerprint}")
    settings = ", ".join(f"{key.split('.')[1]} {value}" for key, value in fitted.items())
    wrapped(f"settings     {settings} (fitted for a CPU)", indent=13)


@data_app.command("get")
def data_get(name: Annotated[str, Argument(help="A download from `minigpt data list`.", metavar="NAME")]) -> None:
    """Download a text into the cache, and print its path and license.

    Examples:
      minigpt data get shakespeare
    """
    from minigpt.text.download import download, downloads

    name = name.removeprefix("download:")
    path = download(name)
    notice(downloads()[name].license)
    print(path)


def _listed(chars: Sequence[str]) -> str:
    return " ".join(map(repr, chars[:12])) + (" ..." if len(chars) > 12 else "")
