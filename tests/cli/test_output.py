"""Tables fit the terminal. Files are written whole or not at all."""

import io
import json
import math
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from command_line import Cli, process

from minigpt.cli.output import check_writable, json_text, table, waiting, wrapped, write_bytes
from minigpt.errors import UserError
from minigpt.text.sources import PAGE_MARK

TABLE = (
    ("name", "description", "size"),
    [("a", "some words that take more than a line", "1"), ("bee", "few words", "22")],
)


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Return a function that prints a table to a terminal of `width` columns, or to a pipe if `width` is None."""

    def show(width: int | None, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setattr(type(sys.stdout), "isatty", lambda self: width is not None)
        table(head, rows)
        plain = re.sub(r"\x1b\[\d*m", "", capsys.readouterr().out)
        return "".join(f"{line.rstrip()}\n" for line in plain.splitlines())

    return show


@pytest.mark.parametrize("width", [None, 80])
def test_a_table_in_a_pipe_or_a_wide_terminal_has_one_line_per_row(
    printed: Callable[..., str], width: int | None
) -> None:
    one, two = ("1", "22") if width is None else ("   1", "  22")  # numbers are aligned on a terminal
    assert printed(width, *TABLE).splitlines() == [
        "name  description                            size",
        f"a     some words that take more than a line  {one}",
        f"bee   few words                              {two}",
    ]


@pytest.mark.parametrize("width", [30, 37])
def test_a_narrow_terminal_wraps_the_widest_column(printed: Callable[..., str], width: int) -> None:
    head, *lines = printed(width, *TABLE).splitlines()
    assert head.split() == ["name", "description", "size"]
    assert max(map(len, [head, *lines])) <= width
    first = " ".join(line[6:].removesuffix("   1").strip() for line in lines if not line.startswith("bee"))
    assert first.startswith("some words that take more than a line")


@pytest.mark.parametrize("width", [None, 80])
def test_a_chinese_letter_is_as_wide_as_two_others(printed: Callable[..., str], width: int | None) -> None:
    assert printed(width, ["a", "b"], [["論語", "x"], ["four", "y"]]).splitlines() == ["a     b", "論語  x", "four  y"]


def test_cells_are_not_markup(printed: Callable[..., str]) -> None:
    assert printed(80, ["a", "b"], [["[bold]x[/bold]", "[/]"]]).splitlines() == [
        "a               b",
        "[bold]x[/bold]  [/]",
    ]


@pytest.mark.parametrize(
    ("width", "expected"),
    [(20, "  2  The dot product\n     has a/long-name\n"), (None, "  2  The dot product has a/long-name\n")],
)
def test_a_line_is_wrapped_between_words_on_a_terminal_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], width: int | None, expected: str
) -> None:
    monkeypatch.setenv("COLUMNS", str(width or 20))
    monkeypatch.setattr(type(sys.stdout), "isatty", lambda self: width is not None)
    wrapped("  2  The dot product has a/long-name", indent=5)
    assert capsys.readouterr().out == expected


def test_a_file_is_replaced_only_if_asked_or_a_page_of_minigpt(tmp_path: Path) -> None:
    other, page = tmp_path / "a.txt", tmp_path / "page.html"
    other.touch()
    page.write_bytes(b"<!doctype html>" + PAGE_MARK)
    check_writable(page)
    check_writable(other, force=True)
    with pytest.raises(UserError, match="it exists; to replace it, add --force"):
        check_writable(other)


# ---- JSON and files ----


def test_json_never_contains_a_number_that_is_not_finite() -> None:
    assert json.loads(json_text({"loss": [math.nan, -math.inf, 1.5]})) == {"loss": [None, None, 1.5]}


@pytest.mark.skipif(os.name == "nt", reason="needs POSIX")
def test_a_file_that_cannot_be_completed_keeps_its_old_content(at_home: Path, tmp_path: Path) -> None:
    """As on a full disk."""
    import resource

    out = tmp_path / "sample.txt"
    out.write_text("old", encoding="utf-8")
    done = process(
        *("sample", "-l", "2000", "--seed", "1", "--force", "-o", str(out)),
        cwd=at_home,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)),
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"minigpt: cannot write {out}: File too large\n"
    assert [(path.name, path.read_text(encoding="utf-8")) for path in tmp_path.iterdir()] == [("sample.txt", "old")]


@pytest.mark.skipif(os.name == "nt", reason="needs POSIX")
def test_the_target_of_a_link_is_replaced_and_keeps_its_permissions(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_bytes(b"old")
    target.chmod(0o600)
    link.symlink_to("target")
    before = target.stat().st_ino
    write_bytes(b"new", link)
    assert link.is_symlink()
    assert target.read_bytes() == b"new"
    assert target.stat().st_mode & 0o777 == 0o600
    assert target.stat().st_ino != before


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/dev/stdout"), reason="needs POSIX")
def test_a_device_or_a_pipe_is_written_directly(cli: Cli, at_home: Path) -> None:
    write_bytes(b"x", Path(os.devnull))
    assert not Path(os.devnull).is_file()
    sample = ("sample", "-l", "3", "-t", "0")
    assert process(*sample, "-o", "/dev/stdout", cwd=at_home).stdout == cli(*sample).out
    assert cli(*sample, "-o", "-").out == cli(*sample).out
    page = process("inspect", "-o", "-", cwd=at_home).stdout
    assert page.startswith("<!")
    assert page.rstrip().endswith("</html>")
    assert not (at_home / "-").exists()


def test_a_terminal_shows_what_a_command_waits_for_until_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    for is_terminal, expected in ((True, "reading ...\r" + " " * 11 + "\r"), (False, "")):
        stream = io.StringIO()
        monkeypatch.setattr(stream, "isatty", lambda is_terminal=is_terminal: is_terminal)
        monkeypatch.setattr(sys, "stderr", stream)
        with waiting("reading"):
            pass
        assert stream.getvalue() == expected
