"""Helpers that run the command line, in this process or in its own."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from minigpt.cli.main import main

SMALL = [
    *("-s", "model.n_layer=1", "-s", "model.n_head=1", "-s", "model.n_embd=16", "-s", "model.context=16"),
    *("-s", "train.steps=4", "-s", "train.batch_size=4", "-s", "train.eval_every=2", "-s", "train.save_every=2"),
    *("-s", "sample.preview=5", "-s", "runtime.device=cpu"),
    *("-s", "runtime.dtype=float32", "-s", "runtime.compile=false"),
]
HANG = 300.0
"""Seconds after which a test fails, because something hangs. Even a slow and busy machine takes far less."""
VERSE = "Rough winds do shake the darling buds of May,\nand summer's lease hath all too short a date.\n" * 20


@dataclass(frozen=True)
class Done:
    """The result of a command."""

    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The line of the error, without its prefix. Fails if the command did not end with exactly one."""
        assert (self.code, self.out) == (1, ""), self
        *before, last = self.err.splitlines()
        assert last.startswith("minigpt: "), self.err
        assert not [line for line in before if line.startswith(("minigpt: ", "Traceback"))]
        return last.removeprefix("minigpt: ")

    @property
    def json(self) -> Any:
        assert self.code == 0, self
        return json.loads(self.out, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


Cli = Callable[..., Done]


def called(folder: Path, *arguments: str) -> None:
    """Run the command line in this process in `folder`, and expect success. For fixtures of a wide scope."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "argv", ["minigpt", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
    assert not end.value.code


def process(*arguments: str, cwd: Path | None = None, **more: Any) -> "subprocess.CompletedProcess[str]":
    """Run the command line in its own process."""
    command = [sys.executable, "-m", "minigpt", *arguments]
    return subprocess.run(command, cwd=cwd, env=environment(), capture_output=True, text=True, check=False, **more)


def environment() -> dict[str, str]:
    """Return the environment for a new process: it finds this checkout, and buffers its output as usual."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    root = str(Path(__file__).resolve().parents[2])
    return {**inherited, "PYTHONPATH": root, "PYTHONIOENCODING": "utf-8", "OMP_NUM_THREADS": "1"}


def wait_until(condition: Callable[[], object]) -> None:
    """Wait for what another process does."""
    end = time.monotonic() + HANG
    while not condition():
        assert time.monotonic() < end, "it hangs"
        time.sleep(0.02)
