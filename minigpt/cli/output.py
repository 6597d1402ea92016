"""What commands print: results to stdout, everything else to stderr."""

import errno
import json
import math
import os
import shutil
import sys
import textwrap
from collections.abc import Sequence
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minigpt.errors import UserError, escape, reason, sanitize_terminal
from minigpt.training.signals import ignore_broken_stderr

if TYPE_CHECKING:
    from minigpt.config.schema import DataConfig

GAP = "  "
WRAPPED = 24
"""How narrow a column is made, in characters, for a table to fit a terminal."""


def notice(*lines: str) -> None:
    """Print lines for the person at the terminal."""
    for line in lines:
        with ignore_broken_stderr():
            print(escape(line), file=sys.stderr)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows of cells below their heads, in columns.

    On a terminal that is too narrow the widest column is wrapped, and columns that still do not fit stand below the
    others, beside the first one again.
    """
    lines = [[escape(cell) for cell in row] for row in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    room = shutil.get_terminal_size().columns if sys.stdout.isatty() else math.inf
    widest, too_much = widths.index(max(widths)), sum(widths) + len(GAP) * (len(widths) - 1) - room
    if too_much > 0:
        widths[widest] = min(widths[widest], max(WRAPPED, int(widths[widest] - too_much)))
    for number, columns in enumerate(_fitting(widths, room)):
        if number:
            print()
        for line in lines:
            cells = [textwrap.wrap(line[i], widths[i]) if len(line[i]) > widths[i] else [line[i]] for i in columns]
            for parts in zip_longest(*cells, fillvalue=""):
                padded = (part.ljust(widths[i]) for part, i in zip(parts, columns, strict=True))
                print(GAP.join(padded).rstrip())


def _fitting(widths: Sequence[int], room: float) -> list[list[int]]:
    """Return which columns of these widths stand side by side: the first, and as many as fit beside it."""
    groups, taken = [[0]], widths[0]
    for column, width in enumerate(widths[1:], start=1):
        if taken + len(GAP) + width > room and len(groups[-1]) > 1:
            groups.append([0])
            taken = widths[0]
        groups[-1].append(column)
        taken += len(GAP) + width
    return groups


def json_text(document: Any) -> str:
    """Return a document as JSON with a line end."""
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def check_writable(*outs: Path | None, read: str | None = None) -> None:
    """Raise UserError for a file that cannot be written, or would replace a result, what is `read`, or a run's file."""
    from minigpt.storage.runs import owner

    taken = {os.path.realpath(read)} if read else set()
    for out in outs:
        if out is None:
            continue
        try:
            os.stat(os.path.join(out.parent, ""))  # which names what is missing or is no folder
            if out.is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            if not os.access(out if out.exists() else out.parent, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        except OSError as error:
            raise UserError(f"cannot write {escape(out)}: {reason(error)}") from error
        if out.is_file() or not out.exists():  # what is written to a device does not replace it
            if os.path.realpath(out) in taken:
                raise UserError(
                    f"cannot write {escape(out)}: it would replace what this command reads or writes as well"
                )
            if run := owner(out):
                raise UserError(f"cannot write {escape(out)}: it would replace what run {escape(run.name)} keeps there")
            taken.add(os.path.realpath(out))


def refuse_trained_on(data: "DataConfig", *outs: Path | None) -> None:
    """Raise UserError for a file that would replace a text of a run, which could then not go on."""
    from minigpt.text.sources import is_read_once, open_corpus

    existing = [out for out in outs if out is not None and out.is_file()]
    texts: set[str] = set()
    for source in (*data.source, *data.val_source) if existing else ():
        if not (source.startswith(("builtin:", "download:")) or is_read_once(source)):
            with suppress(UserError):  # what is gone cannot be replaced
                texts |= {os.path.realpath(part.path) for part in open_corpus(source, data.encoding).parts}
    for out in existing:
        if os.path.realpath(out) in texts:
            raise UserError(f"cannot write {escape(out)}: it would replace the text that this run was trained on")


def write(text: str, out: Path | None = None) -> None:
    """Print `text`, harmless where a terminal shows it, or write it to a file. Raises UserError where it cannot."""
    if out is None:
        print(sanitize_terminal(text) if sys.stdout.isatty() else text, end="", flush=True)
        return
    try:
        out.write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise UserError(f"cannot write {escape(out)}: {reason(error)}") from error


def write_bytes(content: bytes, out: Path) -> None:
    """Write a file. Raises UserError where that cannot be."""
    try:
        out.write_bytes(content)
    except OSError as error:
        raise UserError(f"cannot write {escape(out)}: {reason(error)}") from error
