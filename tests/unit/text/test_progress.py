"""Large texts: a killed scan or encoding is continued."""

import gzip
import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from minigpt.config.schema import DataConfig
from minigpt.errors import UserError
from minigpt.text import corpus as text_corpus
from minigpt.text import dataset as data
from minigpt.text.corpus import Corpus, Part, Progress
from minigpt.text.tokenizer import CharTokenizer

SMALL = """
from minigpt.text import corpus, dataset
corpus.BLOCK = dataset.BLOCK = 1000
corpus.INTERVAL = dataset.INTERVAL = 2000
dataset.CLOCK_NS = -10**9
"""
"""Make all sizes small, and trust new files at once."""
PIECES = ["a", "é", "漢", "😀", "\n", "\r\n", "\r"]
TEXT = "".join(PIECES[i] for i in np.random.default_rng(0).integers(0, len(PIECES), 8000))
"""About 16 blocks. Their ends cut characters and `\\r\\n`."""

posix = pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MINIGPT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (text_corpus, data):
        monkeypatch.setattr(module, "BLOCK", 1000)
        monkeypatch.setattr(module, "INTERVAL", 2000)
    monkeypatch.setattr(data, "CLOCK_NS", -(10**9))


@pytest.fixture
def passes(small: None, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of blocks that each pass over a text reads."""
    blocks, found = Progress.blocks, list[int]()

    def counted(self: Progress, results: Callable[[], object]) -> Iterator[str]:
        found.append(0)
        for block in blocks(self, results):
            found[-1] += 1
            yield block

    monkeypatch.setattr(Progress, "blocks", counted)
    return found


def layout(folder: Path, name: str) -> DataConfig:
    """Write `TEXT` to files."""
    utf8 = TEXT.encode()
    folder.mkdir(exist_ok=True)
    if name == "several files":
        parts = [TEXT[:250], "", *(TEXT[start : start + 1900] for start in range(250, len(TEXT), 1900))]
        for number, part in enumerate(map(str.encode, parts)):
            path = folder / f"{number}.txt{'.gz' * (number % 2)}"
            path.write_bytes(gzip.compress(part) if number % 2 else part)
        return DataConfig(source=(str(folder),), encoding="utf-8")
    path = folder / ("a.txt.gz" if name == "gzip" else "a.txt")
    path.write_bytes({"gzip": gzip.compress(utf8), "utf-16": TEXT.encode("utf-16")}.get(name, utf8))
    return DataConfig(source=(str(path),), encoding="utf-16" if name == "utf-16" else "utf-8")


def undisturbed(config: DataConfig, folder: Path) -> tuple[str, bytes]:
    """Return the fingerprint of a text and its token file, from a cache of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINIGPT_CACHE", str(folder / "other cache"))
        fingerprint = data.load_dataset(config).fingerprint
        (file,) = (folder / "other cache" / "tokens").iterdir()
        return fingerprint, file.read_bytes()


def check(config: DataConfig, expected: tuple[str, bytes], cache: Path) -> None:
    """Load a dataset, which must be as expected. Nothing else may be left in the cache."""
    found = data.load_dataset(config)
    (file,) = (cache / "tokens").iterdir()
    assert (found.fingerprint, file.read_bytes()) == expected
    text = "".join(data.open_corpus(config.source, config.encoding).blocks())
    assert found.tokenizer.decode(np.concatenate(found.encoded)) == text
    assert [path.name for path in (cache / "records").iterdir() if path.name.startswith(".")] == []


def interrupt(config: DataConfig, number: int, after: int) -> None:
    """Load a dataset, with Ctrl-C in pass `number` (1: scan, 2: encoding) after some blocks."""
    blocks, started = Progress.blocks, list[int]()

    def interrupted(self: Progress, results: Callable[[], object]) -> Iterator[str]:
        started.append(1)
        for count, block in enumerate(blocks(self, results)):
            if len(started) == number and count == after:
                raise KeyboardInterrupt
            yield block

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Progress, "blocks", interrupted)
        with pytest.raises(KeyboardInterrupt):
            data.load_dataset(config)


# --- kills ---------------------------------------------------------------------------------------------

KILLED = f"""{SMALL}
import os, signal, sys
from minigpt.config.schema import DataConfig
config, number = DataConfig.model_validate_json(sys.argv[1]), int(sys.argv[2])
blocks, started = corpus.Progress.blocks, []
def killed(self, results):
    started.append(0)
    for block in blocks(self, results):
        yield block
        started[-1] += 1
        if len(started) == number and started[-1] == 12:
            print(started, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
corpus.Progress.blocks = killed
dataset.load_dataset(config)
"""


@posix
@pytest.mark.parametrize("name", ["utf-8", "utf-16", "gzip", "several files"])
def test_a_killed_scan_and_a_killed_encoding_are_continued(
    tmp_path: Path, cache: Path, passes: list[int], name: str
) -> None:
    config = layout(tmp_path / "texts", name)
    expected = undisturbed(config, tmp_path)
    total, _ = passes
    counts = []
    for number in (1, 2):
        command = [sys.executable, "-c", KILLED, config.model_dump_json(), str(number)]
        killed = subprocess.run(command, capture_output=True, text=True, check=False)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        counts.append(json.loads(killed.stdout))
    passes.clear()
    check(config, expected, cache)
    assert counts[0] == [12]
    ((scanned, _), (encoded,)) = counts[1], passes
    assert total - 12 < scanned <= total - 6, "the second process skips what the first one recorded"
    assert total - 12 < encoded <= total - 6


@pytest.mark.parametrize(
    "encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-be", "utf-32", "utf-7", "gb18030", "iso2022_jp_2", "hz"]
)
def test_a_text_can_be_read_from_the_end_of_each_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    monkeypatch.setattr(text_corpus, "BLOCK", 7)
    content = "汉a\r\n汉字\r\r\na汉a字" * 3
    raw = content.encode(encoding) if encoding != "utf-8" else ("\ufeff" + content).encode()
    (tmp_path / "a.txt").write_bytes(raw)
    (tmp_path / "b.gz").write_bytes(gzip.compress(raw))
    with zipfile.ZipFile(tmp_path / "c.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("c", raw)
    parts = (Part("a", tmp_path / "a.txt", encoding), Part("b", tmp_path / "b.gz", encoding))
    corpus = Corpus("all", (*parts, Part("c", tmp_path / "c.zip", encoding, member="c")))
    found = list(corpus.blocks_from(()))
    text = "".join(block for block, _ in found)
    assert text == content.replace("\r\n", "\n").replace("\r", "\n") * 3
    assert len(found) > 20
    read = 0
    for block, position in found:
        read += len(block)
        stored = json.loads(json.dumps(position))
        assert "".join(rest for rest, _ in corpus.blocks_from(stored)) == text[read:]


def test_an_error_after_a_resumption_is_that_of_a_first_scan(tmp_path: Path, passes: list[int]) -> None:
    """A file that is ASCII up to a broken character may have another encoding."""
    for ascii_only in (True, False):
        path = tmp_path / f"{ascii_only}.txt"
        path.write_bytes((b"a" if ascii_only else "é".encode()) * 6000 + b"\xc3")
        config = DataConfig(source=(str(path),))
        interrupt(config, 1, 4)
        with pytest.raises(UserError) as again:
            data.load_dataset(config)
        with pytest.raises(UserError) as first:
            data.scan_cached(data.open_corpus(config.source), is_trusted=False)
        assert str(again.value) == str(first.value)
        assert vars(again.value) == vars(first.value)
        assert passes[-2] < passes[-1]


# --- damage and changes --------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["flipped", "cut", "missing", "no record", "longer"])
def test_a_damaged_partial_file_is_written_again(tmp_path: Path, cache: Path, passes: list[int], damage: str) -> None:
    config = layout(tmp_path / "texts", "utf-8")
    expected = undisturbed(config, tmp_path)
    total, _ = passes
    interrupt(config, 2, 6)
    (partial,) = (path for path in (cache / "tokens").iterdir() if "lock" not in path.name)
    content = bytearray(partial.read_bytes())
    content[7] ^= damage == "flipped"
    partial.write_bytes(content[:100] if damage == "cut" else content + b"x" * 5000 * (damage == "longer"))
    if damage == "missing":
        partial.unlink()
    if damage == "no record":
        (record,) = (cache / "records").glob(".*.tmp")
        record.unlink()
    passes.clear()
    check(config, expected, cache)
    assert passes == [total] if damage != "longer" else passes < [total - 1]


@pytest.mark.parametrize("number", [1, 2])
def test_a_text_that_changes_after_a_kill_is_read_from_its_start(
    tmp_path: Path, cache: Path, passes: list[int], number: int
) -> None:
    config = layout(tmp_path / "texts", "utf-8")
    interrupt(config, number, 9)
    time.sleep(0.05)  # the clock of the file system may have steps
    (tmp_path / "texts" / "a.txt").write_bytes(TEXT[::-1].encode())
    expected = undisturbed(config, tmp_path)
    passes.clear()
    found = data.load_dataset(config)
    assert found.fingerprint == expected[0]
    assert passes[0] == passes[1] > 9
    tokens = {path.read_bytes() for path in (cache / "tokens").iterdir() if not path.name.startswith(".")}
    assert tokens == {expected[1]}


def test_a_text_that_changed_unnoticed_is_never_encoded_as_the_old_one(
    tmp_path: Path, cache: Path, passes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data, "file_state", lambda file: (0, 0, 0, 0, 0))
    config = layout(tmp_path / "texts", "utf-8")
    interrupt(config, 2, 9)
    path = tmp_path / "texts" / "a.txt"
    path.write_bytes(path.read_bytes().replace("aé".encode(), "éa".encode()))
    with pytest.raises(UserError, match="changed while minigpt was reading it"):
        data.load_dataset(config)
    assert [path.name for path in (cache / "tokens").iterdir() if "lock" not in path.name] == []


def test_an_encoding_that_fails_leaves_no_partial_file(
    tmp_path: Path, cache: Path, small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk must not stay full."""
    config = layout(tmp_path / "texts", "utf-8")
    encode, calls = CharTokenizer.encode, list[int]()

    def failing(self: CharTokenizer, *args: object) -> data.Ids:
        calls.append(1)
        if len(calls) == 9:
            raise OSError("no space left")
        return encode(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(CharTokenizer, "encode", failing)
    with pytest.raises(UserError, match="no space left"):
        data.load_dataset(config)
    assert [path.name for path in (cache / "tokens").iterdir() if "lock" not in path.name] == []


def test_abandoned_files_are_removed_a_day_later(tmp_path: Path, cache: Path, small: None) -> None:
    config = layout(tmp_path / "texts", "utf-8")
    for number in (2, 1):
        interrupt(config, number, 9)
        (tmp_path / "texts" / "a.txt").write_bytes(b"another text" * 1000)
    left = list(cache.rglob(".*.tmp"))
    assert len(left) == 4, "a lock, a partial file and two records"
    for path in left:
        os.utime(path, (0, time.time() - 90_000))
    (tmp_path / "b.txt").write_text("some text", encoding="utf-8")
    data.load_dataset(DataConfig(source=(str(tmp_path / "b.txt"),)))
    assert list(cache.rglob(".*.tmp")) == []


@pytest.mark.parametrize("is_new", [True, False])
def test_a_small_or_new_text_records_no_progress(
    tmp_path: Path, cache: Path, small: None, monkeypatch: pytest.MonkeyPatch, is_new: bool
) -> None:
    recorded = list[object]()
    monkeypatch.setattr(text_corpus, "remember", lambda state, facts: recorded.extend(state))
    if is_new:
        monkeypatch.setattr(data, "CLOCK_NS", 10**15)
    else:
        monkeypatch.setattr(data, "one_writer", lambda path: pytest.fail("a small text needs no lock"))
    path = tmp_path / "a.txt"
    path.write_text(TEXT if is_new else TEXT[:1999], encoding="utf-8", newline="")
    data.load_dataset(DataConfig(source=(str(path),)))
    assert recorded == []
    assert list(cache.rglob(".*.tmp")) == []
    assert len(list((cache / "tokens").iterdir())) == 1


CONCURRENT = f"""{SMALL}
import pathlib, sys, time
from minigpt.config.schema import DataConfig
blocks, started = corpus.Progress.blocks, []
def slow(self, results):
    started.append(1)
    for block in blocks(self, results):
        time.sleep(0.01)
        yield block
corpus.Progress.blocks = slow
print("ready", flush=True)
while not pathlib.Path(sys.argv[2]).exists():
    time.sleep(0.001)
dataset.load_dataset(DataConfig.model_validate_json(sys.argv[1]))
print(len(started))
"""


def test_of_two_processes_one_encodes_a_large_text(tmp_path: Path, cache: Path, small: None) -> None:
    config = layout(tmp_path / "texts", "utf-8")
    expected = undisturbed(config, tmp_path)
    command = [sys.executable, "-c", CONCURRENT, config.model_dump_json(), str(tmp_path / "go")]
    workers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    for worker in workers:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
    (tmp_path / "go").touch()
    assert sorted(int(worker.communicate(timeout=60)[0]) for worker in workers) == [1, 2]
    check(config, expected, cache)
