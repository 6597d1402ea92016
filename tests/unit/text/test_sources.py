"""Text sources: which files they name, how files are decoded, and errors for texts that cannot be read."""

from __future__ import annotations

import codecs
import gzip
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from minigpt.errors import EncodingError, UserError, escape
from minigpt.files import is_temporary
from minigpt.text.corpus import BLOCK, Fingerprint, scan
from minigpt.text.sources import BUILTINS, open_corpus

MANY_SCRIPTS = "naïve 日本語の文章 \U0001f600\U0001f468‍\U0001f469‍\U0001f467 é vs é क्षि\n\tend"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder, and a cache beside it."""
    monkeypatch.setenv("MINIGPT_CACHE", str(tmp_path / "cache"))
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    return here


def text(source: str | list[str], encoding: str = "utf-8") -> str:
    return "".join(open_corpus(source, encoding).blocks())


def error(source: str | list[str], encoding: str = "utf-8") -> str:
    """Return the one-line error for a source that cannot be read."""
    with pytest.raises(UserError) as caught:
        text(source, encoding)
    message = str(caught.value)
    assert message.isprintable(), f"not one line: {message!r}"
    return message


def fingerprint(utf8: bytes) -> str:
    digests = [hashlib.sha256(utf8[start : start + BLOCK]).digest() for start in range(0, len(utf8), BLOCK)]
    return hashlib.sha256(b"".join(digests)).hexdigest()


any_text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)


@given(text_in=any_text.filter(lambda s: not s.startswith("\ufeff")))
@example(text_in=MANY_SCRIPTS)
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_round_trips(folder: Path, text_in: str) -> None:
    stored = text_in.encode()
    Path("a.txt").write_bytes(stored)
    Path("a.txt.gz").write_bytes(gzip.compress(stored))
    for source in ("a.txt", "a.txt.gz"):
        corpus = open_corpus(source)
        expected = text_in.replace("\r\n", "\n").replace("\r", "\n")
        assert "".join(corpus.blocks()) == expected
        found = scan(corpus)
        assert found.fingerprint == fingerprint(expected.encode())
        assert found.counts == Counter(expected)
        assert found.characters == len(expected)
        assert list(found.counts) == sorted(found.counts)


def test_blocks_are_bounded_and_can_be_read_again() -> None:
    Path("big.txt").write_text("0123456789abcdef" * 200_000, encoding="utf-8")
    Path("small.txt").write_text("text\n", encoding="utf-8")
    corpus = open_corpus(["small.txt", "big.txt"])
    blocks = list(corpus.blocks())
    assert max(map(len, blocks)) <= BLOCK
    assert list(corpus.blocks()) == blocks
    found = scan(corpus)
    assert found.counts == Counter("".join(blocks))
    assert found.fingerprint == fingerprint("".join(blocks).encode())


@pytest.mark.parametrize("length", [1, BLOCK - 1, BLOCK, 2 * BLOCK, 2 * BLOCK + 1])
@pytest.mark.parametrize(("first", "size"), [(1, BLOCK), (BLOCK // 2, BLOCK // 2), (BLOCK, 3 * BLOCK), (4096, 77_777)])
def test_a_fingerprint_depends_on_the_text_only(length: int, first: int, size: int) -> None:
    """How the text is cut into parts does not matter. Different processes can hash its blocks."""
    utf8 = (b"0123456789abc" * (length // 13 + 1))[:length]
    found = Fingerprint()
    found.update(utf8[:first])
    for start in range(first, length, size):
        found.update(utf8[start : start + size])
    assert found.hexdigest() == fingerprint(utf8)


def test_a_fingerprint_stays_what_earlier_versions_stored() -> None:
    """Otherwise a resumed run would refuse its text."""
    found = Fingerprint()
    found.update(b"To be, or not to be. " * 150_000)  # three blocks and a part
    assert found.hexdigest() == "b10a3c857afd4c9e3c03e7fe2e41dc0172372dfe85e525acb3275c14b8de1129"


def test_files_and_encodings_do_not_change_the_fingerprint() -> None:
    whole = MANY_SCRIPTS * 20_000
    Path("wide.txt").write_bytes(whole.encode("utf-16"))
    Path("a.txt").write_bytes(whole[:7777].encode())
    Path("b.txt.gz").write_bytes(gzip.compress(whole[7777:].encode()))
    assert scan(open_corpus(["a.txt", "b.txt.gz"])) == scan(open_corpus("wide.txt", "utf-16"))


@pytest.mark.parametrize(
    ("mark", "encoding"),
    [(codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be")],
)
def test_byte_order_mark_at_the_start_of_each_file_is_removed(mark: bytes, encoding: str) -> None:
    Path("a.txt").write_bytes(mark + "a\ufeffb\r\n".encode(encoding))
    assert text(["a.txt", "a.txt"], encoding) == "a\ufeffb\n" * 2


def test_all_line_ends_become_newlines() -> None:
    Path("a.txt").write_bytes(b"dos\r\nmac\runix\n\x0cpage\x1a\r")
    assert text(["a.txt", "a.txt"]) == "dos\nmac\nunix\n\x0cpage\x1a\n" * 2


@pytest.mark.parametrize("offset", [0, 1042, BLOCK - 1, BLOCK, 2 * BLOCK + 7])
@pytest.mark.parametrize("before", [b"x", "日".encode()])
def test_the_offset_of_an_undecodable_byte_is_exact(before: bytes, offset: int) -> None:
    count, rest = divmod(offset, len(before))
    Path("notes.txt").write_bytes(before * count + b"x" * rest + b"\xe9 after")
    assert error("notes.txt") == f"notes.txt: byte {offset} (0xe9) is not valid utf-8"
    assert text("notes.txt", "latin-1").endswith("é after")


@pytest.mark.parametrize("byte", [0x80, 0x93, 0x9D, 0xE9])
def test_suggested_encodings_end_with_one_that_reads_the_file(byte: int) -> None:
    """A text from Windows is valid cp1252. Every text is valid latin-1."""
    Path("notes.txt").write_bytes(bytes([byte]) + b" after")
    encoding, tried = "utf-8", ["utf-8"]
    for _ in range(3):
        try:
            assert text("notes.txt", encoding).endswith(" after")
            break
        except EncodingError as caught:
            encoding = caught.suggestion
            tried.append(encoding)
    assert tried == (["utf-8", "cp1252", "latin-1"] if byte == 0x9D else ["utf-8", "cp1252"])
    Path("notes.txt").write_bytes("é".encode())
    with pytest.raises(EncodingError) as caught:
        text("notes.txt", "ascii")
    assert caught.value.suggestion == "utf-8"


def test_an_incomplete_character_at_the_end_of_a_file_is_an_error() -> None:
    """Another encoding would read the rest of the file wrongly, unless that is ASCII."""
    cut = ": the file ends in the middle of a character"
    Path("a.txt").write_bytes("é".encode() + b"x" * (BLOCK - 3) + "日".encode()[:2])
    with pytest.raises(EncodingError) as caught:
        text("a.txt")
    assert str(caught.value) == f"a.txt: byte {BLOCK - 1} (0xe697) is not valid utf-8{cut}"
    assert not caught.value.suggestion
    Path("a.txt").write_bytes("x café".encode("latin-1"))
    with pytest.raises(EncodingError, match=r"valid utf-8$") as caught:
        text("a.txt")
    assert caught.value.suggestion == "cp1252"
    Path("b.txt").write_bytes("日本".encode("utf-16")[:-1])
    assert error("b.txt", "utf-16") == f"b.txt: byte 4 (0x2c) is not valid utf-16{cut}"
    Path("c.txt").write_bytes("日本".encode("utf-16-le"))
    assert "is not valid utf-16" in error("c.txt", "utf-16")


def test_lone_surrogates_are_errors() -> None:
    Path("a.txt").write_bytes(rb"\ud800")
    with pytest.raises(UserError, match="U\\+D800"):
        scan(open_corpus("a.txt", "unicode_escape"))


@pytest.mark.parametrize(
    ("name", "hint"),
    [("utf-9", "unknown text encoding 'utf-9'"), ("rot13", "unknown text encoding"), ("\0", "")],
)
def test_unknown_encodings(name: str, hint: str) -> None:
    Path("a.txt").write_text("abc", encoding="utf-8")
    assert hint in error("a.txt", name)


def test_several_sources_are_joined_like_cat() -> None:
    for name in ("a", "b"):
        Path(f"{name}.txt").write_text(name, encoding="utf-8")
    Path("empty.txt").touch()
    assert text(["b.txt", "a.txt", "empty.txt", "b.txt"]) == "bab"
    assert open_corpus("a.txt").name == "a.txt"
    assert open_corpus(["a.txt", "b.txt", "a.txt"]).name == "3 texts"


def test_a_folder_is_read_in_the_order_of_paths_without_hidden_files(folder: Path) -> None:
    names = ["z.txt", "b/2.txt", "b/10.txt", "a.txt", "B.txt", ".hidden", ".git/config", "b/.env", "c.md"]
    for name in names:
        path = folder / "notes" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"[{name}]", encoding="utf-8")
    assert text("notes") == "[B.txt][a.txt][b/10.txt][b/2.txt][c.md][z.txt]"
    assert text(str(folder / "notes")) == text("notes")
    assert open_corpus("notes").name == "notes/"


def test_binary_files_in_a_folder_are_skipped_with_a_notice(folder: Path) -> None:
    Path("notes").mkdir()
    Path("notes/a.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR")
    assert error("notes") == "no text in notes; notes/: skipped links, runs, pages or binary files (1, first: a.png)"
    Path("notes/b.bin.gz").write_bytes(gzip.compress(b"text\0"))
    Path("notes/c.txt").write_text("text", encoding="utf-8")
    Path("notes/d.txt.gz").write_bytes(gzip.compress(b" more"))
    corpus = open_corpus("notes")
    assert "".join(corpus.blocks()) == "text more"
    assert corpus.notices == (
        "notes/: 2 files",
        "notes/: skipped links, runs, pages or binary files (2, first: a.png)",
    )
    for name in ("b.bin.gz", "c.txt", "d.txt.gz"):
        Path("notes", name).unlink()
    Path("notes/e.txt").write_bytes("wide".encode("utf-16"))
    assert text("notes", "utf-16") == "wide"


def test_a_folder_skips_the_cache(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINIGPT_CACHE", "notes/cache")
    Path("notes/cache/records").mkdir(parents=True)
    Path("notes/cache/records/a").write_text("record", encoding="utf-8")
    Path("notes/a.txt").write_text("text", encoding="utf-8")
    assert text("notes") == "text"


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX")
def test_links_in_a_folder_are_skipped_with_a_notice(folder: Path) -> None:
    """A link could lead out of the folder or form a cycle. A link that the user names is read."""
    (folder / "notes/sub").mkdir(parents=True)
    (folder / "secret.txt").write_text("secret", encoding="utf-8")
    (folder / "notes/sub/a.txt").write_text("a", encoding="utf-8")
    links = {"out": "..", "out.txt": "../secret.txt", "broken.txt": "nowhere", "sub/loop": "..", "self": "self"}
    for link, target in links.items():
        (folder / "notes" / link).symlink_to(target)
    for source in ("notes", "notes/**", "notes/**/*"):
        assert text(source) == "a"
        assert any("skipped" in notice and "link" in notice for notice in open_corpus(source).notices)
    (notice,) = open_corpus("notes").notices
    assert notice == "notes/: skipped links, runs, pages or binary files (5, first: broken.txt)"
    assert error("notes/*/secret.txt").startswith("no text in notes/*/secret.txt; ")
    assert text("notes/out.txt") == "secret"


def test_globs(folder: Path) -> None:
    for name in ("b.txt", "a.txt", "c.md", "deep/er/d.txt", "[x].txt"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(path.name[0], encoding="utf-8")
    assert text("*.txt") == "[ab"
    assert text("**/*.txt") == "[abd"
    assert text(str(folder / "?.txt")) == "ab"
    Path(".hidden.txt").touch()
    assert text("**") == text("**/**/*") == "[abcd"
    assert text("**.txt") == "[ab", "`**` within a name is `*`"
    assert text("[x].txt") == "[", "an existing file is not a pattern"
    assert error("*.rst") == "no text in *.rst"
    assert error("dee?") == "no text in dee?", "a folder is not a file"


def test_runs_and_pages_of_minigpt_are_skipped_with_a_notice(folder: Path) -> None:
    """Otherwise a run in a folder would change the text of that folder, and could not be resumed."""
    for name in ("my.txt", "runs/a/config.yaml", "runs/a/environment.jsonl", "runs/a/metrics.jsonl", "runs/b.txt"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(path.name[0], encoding="utf-8")
    Path("page.html").write_text('<meta name="generator" content="minigpt 1.0">', encoding="utf-8")
    for source in (".", "**", "**/*"):
        assert text(source) == "mb"
        assert "skipped links, runs, pages or binary files (2, first: page.html)" in open_corpus(source).notices[-1]
    Path("runs/b.txt").unlink()
    assert text(["my.txt", "runs"]) == "m"
    assert open_corpus(["my.txt", "runs"]).name == "my.txt"
    assert error("runs") == "no text in runs; runs/: skipped links, runs, pages or binary files (1, first: a)"
    assert error("runs/a") == "runs/a is no text"
    assert text("runs/a/m*") == text("runs/a/metrics.jsonl") == "m", "a run that the user names is read"
    Path("runs/a/environment.jsonl").unlink()
    assert text("runs") == "cm", "a folder with only a configuration is not a run"


def test_missing_and_empty_sources(folder: Path) -> None:
    Path("notes.txt").touch()
    Path("nothing").mkdir()
    assert error("note.txt") == "no file is named 'note.txt'; did you mean notes.txt?"
    assert error("shakespeare").endswith("did you mean download:shakespeare?")
    assert error("builtins:python").endswith("did you mean builtin:python?")
    assert error("far/away.txt") == "no file is named 'far/away.txt'"
    assert error("notes.txt/x") == "cannot read notes.txt/x: Not a directory"
    assert error("notes.txt") == "notes.txt: the text is empty"
    assert error("nothing") == "no text in nothing"
    assert "empty name" in error("")
    assert error("a\nb\0").startswith(r"cannot read a\nb\x00: ")
    assert error("x" * 5000).startswith("cannot read xxx")


def test_a_binary_file_named_directly_is_refused() -> None:
    Path("a.txt").write_bytes("abc".encode("utf-16"))
    with pytest.raises(EncodingError, match=r"^a\.txt is UTF-16 text, not utf-8$") as caught:
        open_corpus("a.txt")
    assert caught.value.suggestion == "utf-16"
    Path("a.bin").write_bytes(b"abc\0")
    assert error(["a.bin"]) == "a.bin is a binary file; save it as plain text first"
    Path("a.pb").write_bytes(b"\x08\x01\x12\xffabc")
    assert error(["a.pb"]) == "a.pb is a binary file; save it as plain text first"
    Path("bell.txt").write_bytes("\aé".encode())
    assert text("bell.txt") == "\aé"
    Path("late.txt").write_bytes(b"x" * 8192 + b"\0")
    assert text("late.txt").endswith("\0"), "only the first 8 KiB decide"


@pytest.mark.parametrize("start", [b"%PDF-1.7", b"PK\x03\x04", b"{\\rtf1"])
def test_a_document_is_a_binary_file_even_if_it_starts_like_a_text(start: bytes) -> None:
    Path("a.txt").write_bytes(start + b" text")
    assert error("a.txt") == "a.txt is a binary file; save it as plain text first"
    Path("b.txt").write_bytes(b"text")
    assert text(".") == "text"


def test_an_address_is_refused() -> None:
    address = "https://example.org/a.txt"
    assert error(address) == f"{address} is an address; download it and save it as plain text first"


@pytest.mark.parametrize("keep", [3, 20, -9])
def test_a_damaged_gz_is_an_error(keep: int) -> None:
    Path("a.gz").write_bytes(gzip.compress(os.urandom(50_000).hex().encode())[:keep])
    assert error("a.gz").startswith("the compressed file a.gz is damaged or incomplete")
    Path("b.gz").write_bytes(b"not compressed at all")
    assert error("b.gz").startswith("the compressed file b.gz is damaged or incomplete")


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX")
@pytest.mark.parametrize("name", ["/dev/stdin", "/dev/fd/0"])
def test_standard_input_has_one_name(name: str) -> None:
    """A file on standard input would be read once for each of its names, and a resumed run could not find it."""
    Path("a.txt").write_text("text", encoding="utf-8")
    with open("a.txt", "rb") as file:
        done = read_in_a_process(name, stdin=file.fileno())
    assert b"only standard input (-) can be a stream" in done.stderr


READ_TWICE = """
import os, sys
from pathlib import Path
from minigpt.text.sources import open_corpus
from minigpt.errors import EncodingError, UserError, escape
try:
    corpus = open_corpus(sys.argv[1])
except UserError as error:
    sys.exit(str(error))
first, second = ("".join(corpus.blocks()) for _ in range(2))
assert first == second and len(list(Path(os.environ["MINIGPT_CACHE"]).iterdir())) == 1
sys.stdout.buffer.write(f"{corpus.name}|{first}".encode())
"""


def read_in_a_process(
    source: str, stdin: int | None = None, typed: bytes | None = None
) -> subprocess.CompletedProcess[bytes]:
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[3])}
    command = [sys.executable, "-c", READ_TWICE, source]
    return subprocess.run(command, stdin=stdin, capture_output=True, env=environment, check=False, input=typed)


def test_standard_input_can_be_read_twice_and_its_copy_is_deleted(folder: Path) -> None:
    done = read_in_a_process("-", typed=MANY_SCRIPTS.encode())
    assert (done.returncode, done.stdout.decode()) == (0, f"standard input|{MANY_SCRIPTS}"), done.stderr
    assert list((folder.parent / "cache").iterdir()) == []
    assert b"standard input: byte 1 (0xff)" in read_in_a_process("-", typed=b"x\xff").stderr
    assert b"standard input: the text is empty" in read_in_a_process("-", typed=b"").stderr


class Endless(io.RawIOBase):
    """A stream that repeats a line for ever, and counts the bytes that were read."""

    def __init__(self, line: bytes) -> None:
        self.line, self.size = line, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        buffer[:] = (self.line * len(buffer))[: len(buffer)]
        self.size += len(buffer)
        assert self.size < 20 << 20
        return len(buffer)


@pytest.mark.parametrize(
    ("line", "most", "problem"),
    [(b"y\n", 5 << 20, "is too large: .*; .*MINIGPT_CACHE"), (b"\0", 1 << 16, "is a binary file")],
)
def test_an_endless_standard_input_does_not_fill_the_disk(
    folder: Path, monkeypatch: pytest.MonkeyPatch, line: bytes, most: int, problem: str
) -> None:
    stream = Endless(line)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(stream)))
    usage = shutil.disk_usage(folder)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=max(0, (6 << 20) - stream.size)))
    assert re.match(f"standard input {problem}", error("-"))
    assert stream.size <= most
    assert not list((folder.parent / "cache").glob("*"))


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX")
def test_only_the_copies_of_killed_processes_are_removed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def send(content: bytes) -> Path:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
        return open_corpus("-").parts[0].path

    killed = (folder.parent / "cache") / f".standard-input-{'0' * 32}.tmp"
    killed.parent.mkdir()
    killed.write_text("what a process copied before it was killed", encoding="utf-8")
    copies = {send(b"first"), send(b"second")}
    assert set(killed.parent.iterdir()) == copies
    assert all(is_temporary(copy.name) for copy in copies), "they go after a day also where files have no locks"


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX")
def test_terminals_and_pipes_are_refused() -> None:
    ours, theirs = os.openpty()
    try:
        assert b"it is a terminal or is closed" in read_in_a_process("-", stdin=theirs).stderr
    finally:
        os.close(ours)
        os.close(theirs)
    os.mkfifo("pipe")
    assert error("pipe").startswith("pipe is neither a file nor a folder")


def test_builtin_python_is_the_library_without_tests_and_build_output() -> None:
    found = scan(open_corpus("builtin:python"))
    assert 5e6 < found.characters < 40e6
    assert "\r" not in found.counts
    assert scan(open_corpus("builtin:python", encoding="utf-16")) == found, "the encoding of files does not apply"


def test_builtin_python_decodes_each_module_as_it_declares(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modules = {
        "a.py": b"# coding: latin-1\r\nx = '\xe9'\r",
        "b.py": codecs.BOM_UTF8 + "y = 'é'\r\n".encode(),
        "bad.py": b"z = '\xe9'\n",
        "unknown.py": b"# coding: no-such\n",
        "b/c.py": b"c\n",
        **{f"{name}/d.py": b"d\n" for name in ("test", "x/tests", "site-packages", "__pycache__", "config-3")},
        "test_e.py": b"e\n",
        "f.txt": b"f\n",
    }
    for name, content in modules.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(folder) if name == "stdlib" else None)
    assert text("builtin:python") == "# coding: latin-1\nx = 'é'\ny = 'é'\nc\n"
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(folder / "b/none"))
    assert "has no standard library source" in error("builtin:python")


def test_builtin_pydoc_and_unknown_names() -> None:
    found = scan(open_corpus("builtin:pydoc"))
    assert found == scan(open_corpus("builtin:pydoc"))
    assert 200_000 < found.characters < 2_000_000
    assert error("builtin:pythn") == (
        f"no built-in text is named 'pythn'; did you mean python? (known: {', '.join(BUILTINS)})"
    )


def test_stories_have_a_length_and_a_seed(folder: Path) -> None:
    whole = text("builtin:stories:5000:1")
    assert len(whole) == 5000
    assert text("builtin:stories:700") == whole[:700]
    assert text("builtin:stories:700:2") != whole[:700]
    assert open_corpus("builtin:stories:700").name == "builtin:stories:700"


@pytest.mark.parametrize(
    "parameters", [":0", ":1e6", ":", ":5:x", ":5:1:1", f":{10**10 + 1}", f":{'9' * 5000}", f":5:{1 << 64}", ":5\n"]
)
def test_stories_with_a_wrong_length_or_seed(parameters: str) -> None:
    said = error(f"builtin:stories{parameters}")
    assert said.startswith(f"builtin:stories{escape(parameters)} is not builtin:stories:LENGTH")
    assert "\n" not in said


def test_the_name_of_the_stories_is_suggested(folder: Path) -> None:
    assert "did you mean stories?" in error("builtin:storys")
    assert error("stories").endswith("did you mean builtin:stories?")
