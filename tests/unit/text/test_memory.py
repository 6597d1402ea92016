"""Memory stays flat when training reads the tokens of a large text."""

import sys
from pathlib import Path

import numpy as np
import pytest

from minigpt.config.schema import DataConfig
from minigpt.text import cache as text_cache
from minigpt.text import dataset as data
from minigpt.text.batches import batch_at, evaluation_windows
from minigpt.text.tokenizer import ByteTokenizer

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def resident(path: Path) -> int:
    """Return the resident bytes of the memory maps of a file."""
    lines = Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines()
    starts = [i for i, line in enumerate(lines) if line.endswith(str(path))]
    assert starts, "the file is mapped"
    sizes = (next(line for line in lines[i:] if line.startswith("Rss:")) for i in starts)
    return sum(1024 * int(size.split()[1]) for size in sizes)


@linux
@pytest.mark.parametrize("is_large", [True, False])
def test_pages_of_a_large_text_do_not_stay_resident(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_large: bool
) -> None:
    monkeypatch.setattr(text_cache, "RESIDENT", 0 if is_large else 1 << 30)
    path, size = tmp_path / "tokens", 8 << 20
    path.write_bytes(bytes(range(128)) * (size // 128))
    tokens = np.asarray(np.memmap(path, dtype=np.uint8, mode="r")).view(np.uint8)[: size - 1000]
    uses = (
        lambda: batch_at(tokens, 16, 1000, seed=0, step=0),
        lambda: list(evaluation_windows(tokens, 1 << 16, 1 << 16, batch_size=1)),
        lambda: ByteTokenizer().characters(tokens),
    )
    for use in uses:
        use()
        assert (resident(path) < size // 4) == is_large
    assert tokens[:128].tolist() == list(range(128)), "the content is the same"


@linux
def test_checking_a_token_file_maps_few_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINIGPT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "a.txt").write_bytes(b"0123456789abcdef" * (1 << 19))
    found = data.load_dataset(DataConfig(source=(str(tmp_path / "a.txt"),)))
    (file,) = (tmp_path / "cache" / "tokens").iterdir()
    assert resident(file) < 3 << 20
    assert len(found.train) > 7 << 20
