"""`scripts/bench/gpu`, whose rows also run on a CPU."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from command_line import environment

SCRIPT = Path(__file__).resolve().parents[3] / "scripts/bench/gpu"


def measured(*arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, SCRIPT, *arguments], capture_output=True, text=True, env=environment(), check=False
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_what_to_type(tmp_path: Path) -> None:
    done = measured("text.txt", tmp_path)
    assert done.returncode == 1
    assert done.stderr == "gpu: there is no GPU here; --device cpu measures the same rows on the CPU\n"


def test_an_unknown_row_is_named(tmp_path: Path) -> None:
    done = measured("text.txt", tmp_path, "--device", "cpu", "--rows", "speed")
    assert "gpu: no row is named speed; rows: nanogpt, " in done.stderr


@pytest.mark.slow
def test_a_row_is_written_when_it_ends_and_a_failure_is_kept(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("The quick brown fox jumps over the lazy dog.\n" * 200, encoding="utf-8")
    done = measured(text, tmp_path / "out", "--device", "cpu", "--rows", "resume and replay")
    (row,) = map(json.loads, (tmp_path / "out/rows.jsonl").read_text(encoding="utf-8").splitlines())
    assert done.returncode == 0, row
    assert row["replay"].endswith("bit for bit")
    done = measured(tmp_path / "none.txt", tmp_path / "out", "--device", "cpu", "--rows", "nanogpt")
    assert done.returncode == 1
    assert "none.txt" in json.loads(done.stdout)["error"]
