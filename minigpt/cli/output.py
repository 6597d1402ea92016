"""Output of commands: results go to stdout or a file, everything else to stderr."""

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
from minigpt.files import publish
from minigpt.training.signals import STDERR

if TYPE_CHECKING:
    from minigpt.config.schema import DataConfig

GAP = "  "
MIN_WRAPPED = 24
"""Minimum width, in characters, of a column that is wrapped to fit the terminal."""


def notice(*lines: str) -> None:
    """Print lines to stderr."""
    for line in lines:
        STDERR.write(f"{escape(line)}\n")


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows of cells in columns.

    If the terminal is too narrow, wrap the widest column. Print columns that still do not fit below the others,
    next to a copy of the first column.
    """
    lines = [[escape(cell) for cell in row] for row in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    available = shutil.get_terminal_size().columns if sys.stdout.isatty() else math.inf
    excess = sum(widths) + len(GAP) * (len(widths) - 1) - available
    if excess > 0:
        widest = widths.index(max(widths))
        widths[widest] = min(widths[widest], max(MIN_WRAPPED, int(widths[widest] - excess)))
    for number, columns in enumerate(_column_groups(widths, available)):
        if number:
            print()
        for line in lines:
            wrapped = [textwrap.wrap(line[i], widths[i]) if len(line[i]) > widths[i] else [line[i]] for i in columns]
            for cells in zip_longest(*wrapped, fillvalue=""):
                print(GAP.join(cell.ljust(widths[i]) for cell, i in zip(cells, columns, strict=True)).rstrip())


def _column_groups(widths: Sequence[int], available: float) -> list[list[int]]:
    """Divide the columns into groups that fit the available width. Each group starts with column 0."""
    groups, used = [[0]], widths[0]
    for column, width in enumerate(widths[1:], start=1):
        if used + len(GAP) + width > available and len(groups[-1]) > 1:
            groups.append([0])
            used = widths[0]
        groups[-1].append(column)
        used += len(GAP) + width
    return groups


def json_text(document: Any) -> str:
    """Return `document` as JSON with a final newline. Raises UserError if a number is not finite."""
    try:
        return json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    except ValueError as error:
        raise UserError("the result has a number that is not finite, which JSON cannot hold") from error


def check_writable(*outs: Path | None, read: str | None = None) -> None:
    """Check, before any work, that a command can write its output files.

    Raises:
        UserError: A file cannot be written, belongs to a run or a checkpoint, is written twice, or is the input file
            `read`.
    """
    from minigpt.paths import containing_run
    from minigpt.storage.metadata import FILES, METADATA

    taken = {os.path.realpath(read)} if read else set()
    for out in outs:
        if out is None:
            continue
        file = _file(out)
        try:
            os.stat(os.path.join((file or out).parent, ""))  # fails if the parent is missing or not a folder
            if out.is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
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
            if file.name in (METADATA, *FILES) and (file.parent / METADATA).exists():
                raise _cannot_write(out, "it belongs to a checkpoint")
            taken.add(str(file))


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
            if file.exists():
                shutil.copymode(file, temporary)
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
