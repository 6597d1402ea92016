"""`minigpt data`."""

from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer import Argument

from minigpt.cli.options import LIST, TEXT, EncodingOption, JsonOption, only_list
from minigpt.cli.output import json_text, notice, size, table, waiting, wrapped, write
from minigpt.errors import escape

data_app = typer.Typer(**LIST)


@data_app.callback(invoke_without_command=True)
def data(context: typer.Context, as_json: JsonOption = False) -> None:
    """List the built-in texts and the downloads, or describe a text.

    Examples:
      minigpt data
      minigpt data info my.txt
    """
    if not only_list(context):
        data_list(as_json)


@data_app.command("list")
def data_list(as_json: JsonOption = False) -> None:
    """List the built-in texts and the downloads."""
    from minigpt.text.download import downloads
    from minigpt.text.sources import BUILTINS

    rows = [(f"builtin:{name}", what, "built in") for name, what in BUILTINS.items()]
    facts: dict[str, Any] = {"license": None, "bytes": None, "is_downloaded": None}
    texts = [{"name": name, "description": what, **facts} for name, what, _ in rows]
    for name, entry in downloads().items():
        where = "downloaded" if entry.is_cached else f"{size(entry.bytes)} to download"
        rows.append((f"download:{name}", f"{entry.description} ({entry.license})", where))
        facts = {"license": entry.license, "bytes": entry.bytes, "is_downloaded": entry.is_cached}
        texts.append({"name": f"download:{name}", "description": entry.description, **facts})
    if as_json:
        write(json_text(texts))
        return
    table(("name", "text", "size or status"), rows)


@data_app.command("info")
def data_info(
    text: Annotated[list[str], Argument(help=TEXT, metavar="TEXT")],
    encoding: EncodingOption = "utf-8",
    as_json: JsonOption = False,
) -> None:
    """Print the files, size and characters of a text, and the settings that fit it. Download it if needed.

    Examples:
      minigpt data info my.txt
      minigpt data info download:shakespeare
    """
    from minigpt.text.corpus import scan
    from minigpt.text.sources import open_corpus
    from minigpt.training.fit import WORK, fit

    with waiting("reading the text"):
        corpus = open_corpus(text, encoding)
        scanned = scan(corpus)
    notice(*corpus.notices)
    files = [escape(part.path) for part in corpus.parts if part.path.is_file()]
    counts = dict(sorted(scanned.counts.items(), key=lambda item: -item[1]))
    fitted = fit(scanned.characters, len(counts), WORK["cpu"])
    if as_json:
        facts = {"name": corpus.name, "files": files, "characters": scanned.characters, "distinct": len(counts)}
        characters = [{"character": character, "count": count} for character, count in counts.items()]
        write(json_text({**facts, "fingerprint": scanned.fingerprint, "counts": characters, "fitted": fitted}))
        return
    rare = sorted(char for char, count in counts.items() if count < 5)
    print(f"characters   {scanned.characters:,}")
    print(f"distinct     {len(counts):,}")
    print(f"most common  {_listed(list(counts))}")
    print(f"rare         {len(rare):,} occur fewer than 5 times{': ' if rare else ''}{_listed(rare)}")
    print(f"fingerprint  {scanned.fingerprint}")
    settings = ", ".join(f"{key.split('.')[1]} {value}" for key, value in fitted.items())
    wrapped(f"settings     {settings} (fitted for a CPU)", indent=13)
    wrapped(f"files        {', '.join(files[:8])}{' ...' * (len(files) > 8)}".rstrip(), indent=13)


def _listed(chars: Sequence[str]) -> str:
    return " ".join(map(repr, chars[:12])) + (" ..." if len(chars) > 12 else "")
