"""Checking the tokens of a large text takes little memory."""

import sys
from pathlib import Path

import pytest

from minigpt.config.schema import DataConfig
from minigpt.text import dataset as data

linux = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")


def resident(path: Path) -> int:
    """Return the resident bytes of the memory maps of a file."""
    lines = Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines()
    starts = [i for i, line in enumerate(lines) if line.endswith(str(path))]
    assert starts, "the file is mapped"
    sizes = (next(line for line in lines[i:] if line.startswith("Rss:")) for i in starts)
    return sum(1024 * int(size.split()[1]) for size in sizes)


@linux
def test_checking_a_token_file_maps_few_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINIGPT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "a.txt").write_bytes(b"0123456789abcdef" * (1 << 19))
    found = data.load_dataset(DataConfig(source=(str(tmp_path / "a.txt"),)))
    (file,) = (tmp_path / "cache" / "tokens").iterdir()
    assert resident(file) < 3 << 20
    assert len(found.train) > 7 << 20
