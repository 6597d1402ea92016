"""Output of commands: results go to stdout or a file, everything else to stderr."""

import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from minigpt.errors import UserError, escape, reason, sanitize_terminal
from minigpt.files import publish
from minigpt.training.signals import STDERR, word_wrapped

NUMBER = re.compile(r"[\d.,]*")


def notice(*lines: str) -> None:
    """Print lines to stderr."""
    for line in lines:
        STDERR.write(f"{word_wrapped(escape(line))}\n")


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Show on a terminal what the user waits for during a block. Any other line may replace it."""
    shown = f"{what} ..." if sys.stderr.isatty() else ""
    STDERR.write(f"{shown}\r" if shown else "")
    try:
        yield
    finally:
        STDERR.write(f"{' ' * len(shown)}\r" if shown else "")


def load_torch() -> None:
    """Import PyTorch, which may take some seconds."""
    with waiting("loading PyTorch"):
        import_module("torch")


def duration(seconds: float) -> str:
    """Return a duration such as "48 s", "12 min", "3.4 h" or "2.1 days"."""
    for least, size, unit in ((172_800, 86_400, "days"), (7200, 3600, "h")):
        if seconds >= least:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"


def size(count: int) -> str:
    """Return a number of bytes such as "12.3 MB"."""
    power, unit = (9, "GB") if count >= 1e9 else (6, "MB") if count >= 1e6 else (3, "kB")
    return f"{count / 10**power:,.1f} {unit}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows of cells in columns. On a terminal, wrap long columns, and align numbers to the right."""
    from rich.cells import cell_len, set_cell_size

    lines = [[escape(cell) for cell in row] for row in (head, *rows)]
    columns = list(zip(*lines, strict=True))
    if not sys.stdout.isatty():
        widths = [max(map(cell_len, column)) for column in columns]
        for line in lines:
            print("  ".join(set_cell_size(cell, width) for cell, width in zip(line, widths, strict=True)).rstrip())
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name, *cells in columns:
        is_number = all(map(NUMBER.fullmatch, cells))
        grid.add_column(name, justify="right" if is_number else "left", no_wrap=is_number, overflow="fold")
    for line in lines[1:]:
        grid.add_row(*map(Text, line))  # without markup
    Console().print(grid)


def wrapped(line: str, indent: int) -> None:
    """Print a line. On a terminal, wrap it between words, and indent the continuation lines by `indent` columns."""
    if sys.stdout.isatty():
        wrapper = textwrap.TextWrapper(shutil.get_terminal_size().columns, subsequent_indent=" " * indent)
        wrapper.break_long_words = wrapper.break_on_hyphens = False
        line = wrapper.fill(line)
    print(line)


def json_text(document: Any) -> str:
    """Return `document` as JSON with a final newline. Numbers that are not finite become null."""
    from pydantic_core import to_json

    return to_json(document, indent=1, inf_nan_mode="null").decode() + "\n"


def check_writable(out: Path | None, force: bool = False) -> None:
    """Check, before any work, that a command can write its output file.

    Raises:
        UserError: The file cannot be written, belongs to a run, or exists without `force`. A page that minigpt wrote
            needs no `force`.
    """
    from tempfile import TemporaryFile

    from minigpt.paths import containing_run

    if out is None or _is_stream(out):
        return
    file = Path(os.path.realpath(out))
    try:
        # Unlike os.access, opening says why: no permission, or a read-only or full disk.
        with TemporaryFile(dir=file.parent), open(file if file.exists() else os.devnull, "ab"):
            pass
    except OSError as error:
        raise _cannot_write(out, reason(error)) from error
    if run := containing_run(file):
        raise _cannot_write(out, f"it belongs to run {run.name}")
    if file.exists() and not (force or _is_page(file)):
        raise _cannot_write(out, "it exists; to replace it, add --force")


def _is_stream(out: Path) -> bool:
    """Return whether `out` is "-" (standard output), a device or a pipe, such as /dev/null."""
    return str(out) == "-" or (out.exists() and not out.is_file() and not out.is_dir())


def _is_page(file: Path) -> bool:
    from minigpt.text.sources import HEAD, PAGE_MARK

    with open(file, "rb") as stream:
        return PAGE_MARK in stream.read(HEAD)


def write(text: str, out: Path | None = None) -> None:
    """Write `text` to a file or to stdout. Raises UserError if the file cannot be written.

    Control characters are escaped on a terminal, because a model may generate escape sequences.
    """
    if out is None or str(out) == "-":
        print(sanitize_terminal(text) if sys.stdout.isatty() else text, end="", flush=True)
    else:
        write_bytes(text.encode(), out)


def write_bytes(content: bytes, out: Path) -> None:
    """Write a file completely or not at all, or write to a device or pipe. Raises UserError if that fails."""
    try:
        if str(out) == "-":
            sys.stdout.buffer.write(content)
            sys.stdout.flush()
            return
        if _is_stream(out):
            with open(out, "ab") as stream:
                stream.write(content)
            return
        with publish(Path(os.path.realpath(out))) as temporary:
            temporary.write_bytes(content)
    except OSError as error:
        raise _cannot_write(out, reason(error)) from error


def _cannot_write(out: Path, why: str) -> UserError:
    return UserError(f"cannot write {escape(out)}: {escape(why)}")
