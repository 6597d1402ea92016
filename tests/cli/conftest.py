"""Fixtures of the command-line tests: runs that are trained once and shared."""

import os
import shutil
from pathlib import Path

import pytest
from command_line import SMALL, VERSE, called


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two texts and two runs: `verse-1` and the older `cjk` with byte tokens. Read only."""
    folder = tmp_path_factory.mktemp("home")
    (folder / "verse.txt").write_text(VERSE, encoding="utf-8")
    (folder / "cjk.txt").write_text("春眠不覺曉處處聞啼鳥。\n" * 40, encoding="utf-8")
    for arguments in (["verse.txt"], ["cjk.txt", "--name", "cjk", "-s", "data.tokenizer=byte"]):
        called(folder, "train", *arguments, *SMALL)
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
def heads_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with verse.txt and `verse`, a run of two layers of two heads. Read only."""
    folder = tmp_path_factory.mktemp("heads")
    (folder / "verse.txt").write_text(VERSE, encoding="utf-8")
    shape = ("-s", "model.n_layer=2", "-s", "model.n_head=2", "-s", "model.context=32")
    called(folder, "train", "verse.txt", "--name", "verse", *SMALL, *shape)
    return folder


@pytest.fixture
def folder(heads_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run the test in the folder of `verse`."""
    monkeypatch.chdir(heads_home)
    return heads_home
