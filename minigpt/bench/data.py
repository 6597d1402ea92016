"""Scanning and encoding a text against plain Python that reads it whole and maps each character."""

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

from minigpt.bench.sides import Built, Document, Round, Say, document, side, take_turns
from minigpt.errors import UserError, reason
from minigpt.model.memory import peak_memory
from minigpt.text.sources import open_corpus, scan

LETTERS = "abcdefghijklmnopqrstuvwxyz"
OTHERS = "éèüßñçαβγδλπабвгд的一是不了人我在有他😀🎉"
MADE = (("ASCII", 100, LETTERS), ("mixed UTF-8", 50, LETTERS + OTHERS))
"""The texts that are made when none is given: name, megabytes, and the letters of their words."""


def run(text: Sequence[str], encoding: str, rounds: int, say: Say) -> Document:
    """Measure on `text`, or on two that are made; copies and caches stand in a temporary folder. Raises UserError."""
    with tempfile.TemporaryDirectory(prefix="minigpt-bench-", ignore_cleanup_errors=True) as made:
        folder = Path(made)
        texts = (
            [_copy(text, encoding, folder)]
            if text
            else [(name, _words(folder / name, size, letters)) for name, size, letters in MADE]
        )
        comparisons = []
        for name, path in texts:
            with ExitStack() as open_sides:
                sides = [
                    open_sides.enter_context(side("minigpt", f"{__name__}.ours", path, folder, say=say)),
                    open_sides.enter_context(side("plain Python", f"{__name__}.plain", path, say=say)),
                ]
                size = path.stat().st_size
                what = f"{name}, {size / 1e6:,.1f} MB"
                comparisons.append(take_turns(sides, rounds, "megabytes_per_second", what=what, bytes=size))
    return document("data", {"texts": [name for name, _ in texts]}, comparisons, "cpu")


def ours(path: Path, folder: Path, say: Say) -> Built:
    """Build the side that prepares a text as `minigpt train` does, each time with an empty cache."""
    from minigpt.text.dataset import encode
    from minigpt.text.tokenizer import build

    def measure() -> Round:
        cache = tempfile.mkdtemp(dir=folder)
        os.environ["MINIGPT_CACHE"] = cache
        started = time.perf_counter()
        corpus = open_corpus(str(path))
        found = scan(corpus)
        scanned = time.perf_counter() - started
        ids = encode(corpus, found, build("char", "".join(found.counts)))
        round_ = _round(path, ids, time.perf_counter() - started)
        round_["scan_megabytes_per_second"] = path.stat().st_size / 1e6 / scanned
        del ids  # Windows does not remove what is mapped
        shutil.rmtree(cache, ignore_errors=True)
        return round_

    return measure, {"about": "counted, fingerprinted, and encoded to a memory map on disk"}


def plain(path: Path, say: Say) -> Built:
    """Build the side that does what a reader would write first."""

    def measure() -> Round:
        started = time.perf_counter()
        with open(path, encoding="utf-8", newline="") as file:
            text = file.read()
        chars = sorted(set(text))
        table = {ord(char): number for number, char in enumerate(chars)}
        numbers = text.translate(table).encode("utf-32-le", "surrogatepass")
        ids = np.frombuffer(numbers, dtype="<u4").astype(np.uint16 if len(chars) < 2**16 else np.uint32)
        return _round(path, ids, time.perf_counter() - started)

    return measure, {"about": f"Python {sys.version.split()[0]}: read whole, str.translate, into a numpy array"}


def _round(path: Path, ids: Any, elapsed: float) -> Round:
    memory, crc32, step = peak_memory(), 0, 1 << 20
    for at in range(0, len(ids), step):  # in parts, for it shall not count as memory of the next round
        crc32 = zlib.crc32(ids[at : at + step].astype("<u4").data, crc32)
    return {
        "seconds": elapsed,
        "megabytes_per_second": path.stat().st_size / 1e6 / elapsed,
        "tokens": len(ids),
        "crc32": crc32,
        **({"memory_bytes": memory} if memory else {}),
    }


def _copy(text: Sequence[str], encoding: str, folder: Path) -> tuple[str, Path]:
    """Write `text`, whatever it is made of, into one UTF-8 file that plain Python reads too; return name and path."""
    corpus = open_corpus(text, encoding)
    path = folder / "text"
    with open(path, "wb") as file:
        for block in corpus.blocks():
            try:
                file.write(block.encode())
            except UnicodeEncodeError as error:
                raise UserError(f"{corpus.name}: {reason(error)}") from error
    return corpus.name, path


def _words(path: Path, megabytes: int, letters: str) -> Path:
    """Write lines of random words: a block of 1 MB, cut and joined differently each time."""
    draw, block = random.Random(0), ""
    while len(block.encode()) < 1_000_000:
        words = ("".join(draw.choices(letters, k=draw.randint(2, 9))) for _ in range(2000))
        block += " ".join(words) + "\n"
    with open(path, "wb") as file:
        for _ in range(megabytes):
            at = draw.randrange(len(block))
            file.write((block[at:] + block[:at]).encode()[:1_000_000].decode(errors="ignore").encode())
    return path
