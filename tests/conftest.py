"""Settings and fixtures for all tests. They keep tests away from the user's own files."""

import io
import os
import random
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import minigpt.model.device as device  # isort: skip - sets OpenMP's variables before PyTorch is imported
import hypothesis
import numpy as np
import pytest
import torch
from command_line import SMALL, Cli, Done, called
from filelock import FileLock
from forgery import STEPS, TEXT

from minigpt.cli.main import main
from minigpt.storage.runs import checkpoint_steps

ROOT = Path(__file__).resolve().parents[1]
Once = Callable[..., Path]
SKIPS = (
    *("needs Linux", "needs POSIX", "needs a GPU", "needs a newer PyTorch", "needs Python 3.11"),
    *("needs Tiny Shakespeare", "needs MINIGPT_TRAIN_COURSE", "could not import 'llama_cpp'"),
    *["could not import 'onnxruntime'"] * (sys.version_info < (3, 11)),
)
"""How the reasons start for which CI may skip a test. Other skips fail there."""

# Hypothesis tries the same examples each time, so that only a change can make them fail.
hypothesis.settings.register_profile("minigpt", deadline=None, derandomize=True)
hypothesis.settings.load_profile("minigpt")

# A shell lets background processes ignore Ctrl-C, and nohup lets them ignore SIGHUP. The processes that tests start
# and interrupt would inherit this.
signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGHUP"):
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logreport(report: Any) -> None:
    """Let a skip fail in CI, unless its reason is one of `SKIPS`."""
    if os.environ.get("CI") == "true" and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2].removeprefix("Skipped: ")
        if not reason.startswith(SKIPS):
            report.outcome, report.longrepr = "failed", f"CI may not skip this test: {reason}"


pytest_collectreport = pytest_runtest_logreport  # modules can be skipped, too


@pytest.fixture(autouse=True)
def signal_handlers() -> Iterator[None]:
    """Restore signal handlers: a run stopped by a signal does not restore them."""
    names = ("SIGINT", "SIGTERM", "SIGHUP")
    before = {name: signal.getsignal(getattr(signal, name)) for name in names if hasattr(signal, name)}
    yield
    for name, handler in before.items():
        signal.signal(getattr(signal, name), handler)


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINIGPT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session", autouse=True)
def no_watch() -> Iterator[None]:
    """Start no thread that measures the load: tests replace the functions that it calls."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device, "adapt_to_load", lambda: None)
        yield


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Make random numbers independent of the tests that ran before."""
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)


@pytest.fixture(scope="session")
def shakespeare() -> Path:
    """Return the path of Tiny Shakespeare, which is not part of the repository."""
    named = os.environ.get("MINIGPT_SHAKESPEARE")
    path = Path(named) if named else ROOT / "../shared/data/tinyshakespeare.txt"
    if not path.is_file():
        pytest.skip("needs Tiny Shakespeare; set MINIGPT_SHAKESPEARE to the file")
    return path.resolve()


@pytest.fixture
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run the test in an empty current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Return a function that calls the command line in this process.

    `stdin` is its standard input, or what a user types if `is_terminal`.
    """

    def call(*arguments: object, stdin: bytes = b"", is_terminal: bool = False) -> Done:
        monkeypatch.setattr(sys, "argv", ["minigpt", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        monkeypatch.setattr(sys.stdin, "isatty", lambda: is_terminal)
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main()
        code = end.value.code or 0
        assert isinstance(code, int)
        return Done(code, *capsys.readouterr())

    return call


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Once:
    """Return a function that returns a folder with texts and runs, which it trains once for all workers. Read only."""
    root = tmp_path_factory.getbasetemp()
    root = root.parent if "PYTEST_XDIST_WORKER" in os.environ else root

    def folder_of(name: str, texts: dict[str, str], *commands: list[str]) -> Path:
        folder = root / name
        with FileLock(root / f"{name}.lock"):
            if not (folder / "is_complete").exists():
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
                for file, text in texts.items():
                    (folder / file).write_text(text, encoding="utf-8")
                for command in commands:
                    called(folder, "train", *(word.replace("{folder}", str(folder)) for word in command))
                (folder / "is_complete").touch()
        return folder

    return folder_of


@pytest.fixture(scope="session")
def finished_run(once: Once) -> Path:
    """A run with checkpoints of steps 2 and 4. Read only."""
    smaller = ["-s", "train.keep_last=2", "-s", "model.n_embd=8", "-s", "model.context=8"]
    run = once("finished", {"a.txt": TEXT}, ["{folder}/a.txt", "--name", "r", *SMALL, *smaller]) / "runs/r"
    assert checkpoint_steps(run) == list(STEPS)
    return run


@pytest.fixture
def torch_settings() -> Iterator[None]:
    """Restore torch's global settings."""
    threads, determinism = torch.get_num_threads(), torch.get_deterministic_debug_mode()
    yield
    torch.set_num_threads(threads)
    torch.set_deterministic_debug_mode(determinism)
