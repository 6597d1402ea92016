"""Measure scanning and encoding against plain Python that reads the whole text and maps each character."""

import os
import random
import shutil
import sys
import tempfile
import time
import zlib
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from bench.report import Report, Round, report
from bench.sides import Log, Workload, measure_interleaved, start_side
from minigpt.errors import TextError, reason
from minigpt.model.memory import peak_memory
from minigpt.text.corpus import scan
from minigpt.text.sources import open_corpus

LETTERS = "abcdefghijklmnopqrstuvwxyz"
OTHERS = "éèüßñçαβγδλπабвгд的一是不了人我在有他😀🎉"
GENERATED = (("ASCII", 100, LETTERS), ("mixed UTF-8", 50, LETTERS + OTHERS))
"""Name, size in megabytes and letters of each text to generate if none is given."""


def run(text: Sequence[str], encoding: str, rounds: int, log: Log) -> Report:
    """Measure `text`, or two generated texts if it is empty. Copies and caches are temporary.

    Raises:
        TextError: The text cannot be read.
    """
    with tempfile.TemporaryDirectory(prefix="minigpt-bench-", ignore_cleanup_errors=True) as temporary:
        folder = Path(temporary)
        if text:
            texts = [_copy_as_utf8(text, encoding, folder)]
        else:
            texts = [(name, _generate(folder / name, size, letters)) for name, size, letters in GENERATED]
        comparisons = []
        for name, path in texts:
            with ExitStack() as stack:
                sides = [
                    stack.enter_context(start_side("minigpt", f"{__name__}.build_minigpt", path, folder, log=log)),
                    stack.enter_context(start_side("plain Python", f"{__name__}.build_plain", path, log=log)),
                ]
                size = path.stat().st_size
                what = f"{name}, {size / 1e6:,.1f} MB"
                comparisons.append(measure_interleaved(sides, rounds, "megabytes_per_second", what=what, bytes=size))
    return report("data", {"texts": [name for name, _ in texts]}, comparisons, "cpu")


def build_minigpt(path: Path, folder: Path, log: Log) -> Workload:
    """Build the side that prepares a text as `minigpt train` does, with an empty cache in each round."""
    from minigpt.text.dataset import encode_cached
    from minigpt.text.tokenizer import make_tokenizer

    def measure() -> Round:
        cache = tempfile.mkdtemp(dir=folder)
        os.environ["MINIGPT_CACHE"] = cache
        started = time.perf_counter()
        corpus = open_corpus(str(path))
        found = scan(corpus)
        scanned = time.perf_counter() - started
        ids = encode_cached(found, make_tokenizer("char", "".join(found.counts)))
        results = _round(path, ids, time.perf_counter() - started)
        results["scan_megabytes_per_second"] = path.stat().st_size / 1e6 / scanned
        del ids  # Windows cannot delete a memory-mapped file
        shutil.rmtree(cache, ignore_errors=True)
        return results

    return measure, {"about": "scan, fingerprint, and encode to a memory map on disk"}


def build_plain(path: Path, log: Log) -> Workload:
    """Build the side that uses the simplest solution."""

    def measure() -> Round:
        started = time.perf_counter()
        with open(path, encoding="utf-8", newline="") as file:
            text = file.read()
        chars = sorted(set(text))
        table = {ord(char): number for number, char in enumerate(chars)}
        numbers = text.translate(table).encode("utf-32-le", "surrogatepass")
        ids = np.frombuffer(numbers, dtype="<u4").astype(np.uint16 if len(chars) < 2**16 else np.uint32)
        return _round(path, ids, time.perf_counter() - started)

    return measure, {"about": f"Python {sys.version.split()[0]}: read all, str.translate, convert to NumPy array"}


def _round(path: Path, ids: Any, elapsed: float) -> Round:
    memory, crc32, step = peak_memory(), 0, 1 << 20
    for start in range(0, len(ids), step):  # in parts, to keep the peak memory of the next round low
        crc32 = zlib.crc32(ids[start : start + step].astype("<u4").data, crc32)
    return {
        "seconds": elapsed,
        "megabytes_per_second": path.stat().st_size / 1e6 / elapsed,
        "tokens": len(ids),
        "crc32": crc32,
        **({"memory_bytes": memory} if memory else {}),
    }


def _copy_as_utf8(text: Sequence[str], encoding: str, folder: Path) -> tuple[str, Path]:
    """Copy all sources of `text` into one UTF-8 file that plain Python can read. Return its name and path."""
    corpus = open_corpus(text, encoding)
    path = folder / "text"
    with open(path, "wb") as file:
        for block in corpus.blocks():
            try:
                file.write(block.encode())
            except UnicodeEncodeError as error:
                raise TextError(f"{corpus.name}: {reason(error)}") from error
    return corpus.name, path


def _generate(path: Path, megabytes: int, letters: str) -> Path:
    """Write lines of random words: repeat one block of 1 MB, rotated by a random number of characters each time."""
    rng, block = random.Random(0), ""
    while len(block.encode()) < 1_000_000:
        words = ("".join(rng.choices(letters, k=rng.randint(2, 9))) for _ in range(2000))
        block += " ".join(words) + "\n"
    with open(path, "wb") as file:
        for _ in range(megabytes):
            start = rng.randrange(len(block))
            file.write((block[start:] + block[:start]).encode()[:1_000_000].decode(errors="ignore").encode())
    return path
