"""Fixtures of the command-line tests: runs that are trained once and shared."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import SMALL, VERSE


@pytest.fixture(scope="session")
def home(once: Callable[..., Path]) -> Path:
    """A folder with two texts and two runs: `verse-1` and the older `cjk` with byte tokens. Read only."""
    texts = {"verse.txt": VERSE, "cjk.txt": "春眠不覺曉處處聞啼鳥。\n" * 40}
    folder = once(
        "home", texts, ["verse.txt", *SMALL], ["cjk.txt", "--name", "cjk", "-s", "data.tokenizer=byte", *SMALL]
    )
    for path in (folder / "runs/cjk").rglob("*"):
        os.utime(path, (1, 1))
    return folder


@pytest.fixture
def at_home(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run the test in the shared folder."""
    monkeypatch.chdir(home)
    return home


@pytest.fixture
def run(home: Path, empty_folder: Path) -> Path:
    """A finished run of four steps on verse.txt, which the test may change."""
    shutil.copy(home / "verse.txt", empty_folder)
    shutil.copytree(home / "runs/verse-1", "runs/verse-1")
    return Path("runs/verse-1")


@pytest.fixture(scope="session")
def heads_home(once: Callable[..., Path]) -> Path:
    """A folder with verse.txt and `verse`, a run of two layers of two heads. Read only."""
    shape = ["-s", "model.n_layer=2", "-s", "model.n_head=2", "-s", "model.context=32"]
    return once("heads", {"verse.txt": VERSE}, ["verse.txt", "--name", "verse", *SMALL, *shape])


@pytest.fixture
def folder(heads_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run the test in the folder of `verse`."""
    monkeypatch.chdir(heads_home)
    return heads_home
