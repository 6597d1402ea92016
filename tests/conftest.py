"""What every test gets: no reach into the user's own files, no time limit that a busy machine breaks; and fixtures."""

import io
import os
import random
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import numpy as np
import pytest
import torch
from command_line import SMALL, Cli, Done, called
from forgery import STEPS, TEXT

import minigpt.training.loop as training
from minigpt.cli.main import main
from minigpt.storage.runs import checkpoint_steps

ROOT = Path(__file__).resolve().parents[1]

# In CI the same examples are drawn each time, so that a red run is the change's doing; elsewhere new ones are tried.
hypothesis.settings.register_profile("minigpt", deadline=None, derandomize=bool(os.environ.get("CI")))
hypothesis.settings.load_profile("minigpt")

# A shell starts what runs in its background deaf to Ctrl-C, and nohup deaf to a closed terminal; so would be all that
# the tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGHUP"):
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINIGPT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def seeded() -> None:
    """What a test draws does not depend on which others ran before it."""
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)


@pytest.fixture(scope="session")
def shakespeare() -> Path:
    """Tiny Shakespeare, which is measured with but not part of the repository."""
    named = os.environ.get("MINIGPT_SHAKESPEARE")
    path = Path(named) if named else ROOT / "../shared/data/tinyshakespeare.txt"
    if not path.is_file():
        pytest.skip("Tiny Shakespeare is not here; MINIGPT_SHAKESPEARE can name the file")
    return path.resolve()


@pytest.fixture
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a test of the command line begins, as a user does."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Call the command line in this process; `stdin` is what is piped into it."""

    def call(*arguments: object, stdin: bytes = b"") -> Done:
        monkeypatch.setattr(sys, "argv", ["minigpt", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main()
        code = end.value.code or 0
        assert isinstance(code, int)
        return Done(code, *capsys.readouterr())

    return call


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with checkpoints of steps 2 and 4, trained in this process; only to be read."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "a.txt").write_text(TEXT, encoding="utf-8")
    smaller = ["-s", "train.keep_last=2", "-s", "model.n_embd=8", "-s", "model.context=8"]
    called(folder, "train", str(folder / "a.txt"), "--name", "r", *SMALL, *smaller)
    assert checkpoint_steps(folder / "runs/r") == list(STEPS)
    return folder / "runs/r"


@pytest.fixture
def quick_and_clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No time spent on measuring this machine, and torch's global settings as they were."""
    monkeypatch.setattr(training, "measure_matmul", lambda runtime: 1e9)
    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(deterministic)
