"""Output of commands: results go to stdout or a file, everything else to stderr."""

import errno
import json
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO

from minigpt.errors import UserError, escape, reason, sanitize_terminal
from minigpt.files import publish
from minigpt.training.signals import STDERR

if TYPE_CHECKING:
    from minigpt.config.schema import DataConfig


NUMBER = re.compile(r"[\d.,]*")
COMMAND = re.compile(r"\bminigpt [a-z].*?(?=[;,] |$)|--set \S+")
"""A command, or a setting for one, in a sentence."""
MIN_WRAPPED = 24
"""Minimum width, in characters, of a long column that is wrapped to fit the terminal."""


def notice(*lines: str) -> None:
    """Print lines to stderr. On a terminal, wrap them between words."""
    for line in lines:
        STDERR.write(f"{fitted(escape(line), sys.stderr)}\n")


def fitted(line: str, stream: TextIO, indent: int = 0) -> str:
    """Wrap a line between words if `stream` is a terminal. Keep commands whole, so that they can be copied."""
    width = shutil.get_terminal_size().columns
    if not stream.isatty() or len(line) <= width:
        return line
    whole = COMMAND.sub(lambda command: command[0].replace(" ", "\0"), line)
    spaces = " " * indent
    wrapped = textwrap.fill(whole, width, subsequent_indent=spaces, break_long_words=False, break_on_hyphens=False)
    return wrapped.replace("\0", " ")


def duration(seconds: float) -> str:
    """Return a duration such as "48 s", "12 min" or "3.4 h"."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows of cells in columns. On a terminal, wrap long columns. On a narrow one, print a line per cell."""
    lines = [[escape(cell) for cell in row] for row in (head, *rows)]
    columns = list(zip(*lines, strict=True))
    widths = [max(map(len, column)) for column in columns]
    if not sys.stdout.isatty():
        for line in lines:
            print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    words = [max(len(word) for cell in column for word in cell.split(" ")) for column in columns]
    least = [MIN_WRAPPED if width > MIN_WRAPPED else word for width, word in zip(widths, words, strict=True)]
    room = console.width - 2 * (len(columns) - 1)
    if sum(least) > room:
        _print_cells(lines)
        return
    while sum(widths) > room:
        widest = max((i for i in range(len(widths)) if widths[i] > least[i]), key=widths.__getitem__)
        widths[widest] -= 1
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for (name, *cells), width in zip(columns, widths, strict=True):
        justify: Literal["left", "right"] = "right" if all(map(NUMBER.fullmatch, cells)) else "left"
        grid.add_column(name, justify=justify, width=width, overflow="fold")
    for line in lines[1:]:
        grid.add_row(*map(Text, line))  # without markup
    console.print(grid)


def _print_cells(lines: Sequence[Sequence[str]]) -> None:
    """Print a table for a narrow terminal: each cell on a line of its own, after the name of its column."""
    head, *rows = lines
    for row in rows:
        for name, cell in zip(head, row, strict=True):
            if cell:
                wrapped(f"{name}: {cell}".removeprefix(": "), indent=2)
        print()


def wrapped(line: str, indent: int) -> None:
    """Print a line. On a terminal, wrap it between words, and indent the continuation lines by `indent` columns."""
    print(fitted(line, sys.stdout, indent))


def json_text(document: Any) -> str:
    """Return `document` as JSON with a final newline. Raises UserError if a number is not finite."""
    try:
        return json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    except ValueError as error:
        raise UserError("the result has a number that is not finite, which JSON cannot hold") from error


def check_writable(*outs: Path | None, read: str | None = None, force: bool = False) -> None:
    """Check, before any work, that a command can write its output files.

    Raises:
        UserError: A file cannot be written, belongs to a run or a checkpoint, is written twice, is the input file
            `read`, or exists without `force`. A page that minigpt wrote may always be replaced.
    """
    from minigpt.paths import containing_run
    from minigpt.storage.metadata import METADATA, is_checkpoint_file

    taken = {os.path.realpath(read)} if read else set()
    for out in outs:
        if out is None:
            continue
        file = _file(out)
        try:
            os.stat(os.path.join((file or out).parent, ""))  # fails if the parent is missing or not a folder
            if out.is_dir():
                raise _cannot_write(out, "it is a folder; name a file in it")
            places = [place for place in (out, file and file.parent) if place and place.exists()]
            if not all(os.access(place, os.W_OK) for place in places):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        except OSError as error:
            raise _cannot_write(out, reason(error)) from error
        if file is not None:  # a device such as /dev/null may be written twice
            if str(file) in taken:
                raise _cannot_write(out, "this command reads it or writes it twice")
            if run := containing_run(file):
                raise _cannot_write(out, f"it belongs to run {run.name}")
            if is_checkpoint_file(file.name) and (file.parent / METADATA).exists():
                raise _cannot_write(out, "it belongs to a checkpoint")
            if file.exists() and not (force or _is_page(file)):
                raise _cannot_write(out, "it exists; to replace it, add --force")
            taken.add(str(file))


def _is_page(file: Path) -> bool:
    from minigpt.text.sources import HEAD, PAGE_MARK

    with open(file, "rb") as stream:
        return PAGE_MARK in stream.read(HEAD)


def refuse_trained_on(data: "DataConfig", *outs: Path | None) -> None:
    """Raise UserError if an output file is one of the run's training texts. Resuming needs them unchanged."""
    existing = [out for out in outs if out is not None and out.is_file()]
    if not existing:
        return
    from minigpt.text.sources import open_corpus

    texts: set[str] = set()
    for source in (*data.source, *data.val_source):
        if source != "-" and not source.startswith(("builtin:", "download:")):
            with suppress(UserError):  # a missing text cannot be overwritten
                texts |= {os.path.realpath(part.path) for part in open_corpus(source, data.encoding).parts}
    for out in existing:
        if os.path.realpath(out) in texts:
            raise _cannot_write(out, "the run was trained on this text")


def write(text: str, out: Path | None = None) -> None:
    """Write `text` to a file or to stdout. Raises UserError if the file cannot be written.

    Control characters are escaped on a terminal, because a model may generate escape sequences.
    """
    if out is None:
        print(sanitize_terminal(text) if sys.stdout.isatty() else text, end="", flush=True)
    else:
        write_bytes(text.encode(), out)


def write_bytes(content: bytes, out: Path) -> None:
    """Write a file completely or not at all, or write to a device or pipe. Raises UserError if that fails."""
    file = _file(out)
    try:
        if file is None:
            with open(out, "ab") as stream:  # /dev/stdout may be a file with earlier output
                stream.write(content)
            return
        with publish(file) as temporary:
            temporary.write_bytes(content)
    except OSError as error:
        raise _cannot_write(out, reason(error)) from error


def _file(out: Path) -> Path | None:
    """Return the regular file that `out` names, existing or not, with links resolved; None for a device or a pipe."""
    file = Path(os.path.realpath(out))
    folder = Path(os.path.realpath(out.parent))
    is_stream = out.is_symlink() and folder.parts[1:2] in (("dev",), ("proc",))  # such as /dev/stdout
    return None if is_stream or (file.exists() and not file.is_file()) else file


def _cannot_write(out: Path, why: str) -> UserError:
    return UserError(f"cannot write {escape(out)}: {escape(why)}")
