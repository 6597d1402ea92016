"""Text from a stranger cannot control the terminal, and a run survives signals and a lost terminal.

Such text can be in a vocabulary, a name or an error.
"""

import errno
import importlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from command_line import HANG, Cli, environment
from forgery import MODEL, STEPS, TEXT, TOKENIZER, forge
from safetensors.torch import load, save

from minigpt.cli.main import main
from minigpt.storage.metadata import METADATA
from minigpt.storage.runs import checkpoint_steps, step_folder
from minigpt.training import signals
from minigpt.training.signals import STDERR, Interrupts, handle

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX"),
    pytest.mark.usefixtures("empty_folder"),
]

EVIL = "\x1b\x07\r\x08\x7f\x9b\x85\u202e\u2066\u2028\x00"
VISIBLE = "abc"


@pytest.fixture
def run(finished_run: Path, empty_folder: Path) -> Path:
    """A copy of the finished run: runs/r in the current folder."""
    return Path(shutil.copytree(finished_run, empty_folder / "runs/r"))


@pytest.fixture
def evil(run: Path) -> Path:
    """The run with control characters in its vocabulary, so it generates them."""
    chars = "".join(sorted(EVIL + VISIBLE + "\n\t"))
    torch.manual_seed(0)
    for step in STEPS:
        folder = step_folder(run, step)
        weights = load((folder / MODEL).read_bytes())
        weights["token_embedding.weight"] = torch.randn(len(chars), 8)
        meta = json.loads((folder / METADATA).read_bytes())
        meta["vocab_size"] = len(chars)
        meta["parameters"] = sum(tensor.numel() for tensor in weights.values())
        meta["corpus"] = f"corpus{EVIL}"
        tokenizer = json.dumps({"kind": "char", "chars": chars}).encode()
        forge(folder, {MODEL: save(weights), TOKENIZER: tokenizer}, meta)
    return run


def read_all(terminal: int) -> bytes:
    """Return what was written to a pseudo-terminal until its other end was closed."""
    shown = b""
    with suppress(OSError):  # on Linux, the end of the output
        while chunk := os.read(terminal, 65536):
            shown += chunk
    os.close(terminal)
    return shown


def at_a_terminal(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[int, str]:
    """Call the command line with a pseudo-terminal for its output; return its exit code and what was shown."""
    ours, theirs = os.openpty()
    with ThreadPoolExecutor() as pool, monkeypatch.context() as patch:
        shown = pool.submit(read_all, ours)
        with open(theirs, "w", encoding="utf-8", newline="") as terminal:
            patch.setattr(sys, "stdout", terminal)
            patch.setattr(sys, "stderr", terminal)
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
            patch.setattr(sys, "argv", ["minigpt", *arguments])
            with pytest.raises(SystemExit) as end:
                main()
        text = shown.result().decode("utf-8").replace("\r\n", "\n")
        text = re.sub(r"[\w ]+ \.\.\.\r +\r", "", text)  # what the command waited for
    return int(end.value.code or 0), re.sub(r"\x1b\[(0|1|22)m", "", text)  # the head of a table, and a prompt, are bold


@pytest.mark.parametrize("how", [[], ["-n", "2"], ["--no-stream"], ["--json"], ["-p", f"a{EVIL}b", "-l", "3"]])
def test_a_model_cannot_drive_the_terminal_and_a_pipe_gets_what_was_drawn(
    cli: Cli, evil: Path, how: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["sample", "r", "-l", "200", "-t", "2", "--unknown", "skip", *how]
    code, shown = at_a_terminal(monkeypatch, *arguments)
    assert code == 0, shown
    assert [c for c in shown if not (c.isprintable() or c in "\n\t")] == []
    piped = cli(*arguments).out
    if "--json" not in how:
        assert set(EVIL) & set(piped), "raw in a pipe"
        assert "\\u001b" in shown


def test_no_name_or_error_can_drive_the_terminal(evil: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = f"x{EVIL.replace(chr(0), '')}"
    evil.rename(evil.with_name(odd))
    (tmp_path / f"{odd}.txt").write_text(TEXT, encoding="utf-8")
    (tmp_path / f"{odd}.yaml").write_text("train: {steps: 3}", encoding="utf-8")
    commands = [
        *(
            ["runs"],
            ["runs", "verify"],
            ["runs", "--json"],
            ["sample", odd, "-l", "1"],
            ["eval", odd, "--file", f"{odd}.txt"],
        ),
        *(
            ["train", "--resume", odd],
            ["train", "--resume", f"runs/{odd}"],
            ["sample", f"no{odd}"],
            ["eval", "--file", odd],
        ),
        *(["sample", f"{odd}@{odd}"], ["sample", odd, "--unknown", odd], ["sample", odd, "--device", odd]),
        *(["data", "info", f"{odd}.txt"], ["data", "info", f"no{odd}.txt"], ["data", "info", f"builtin:{odd}"]),
        *(["data", "info", f"{odd}.txt", "--json"], ["data", "info", f"{odd}.txt", "--encoding", odd]),
        *(["config", "show", "-c", f"{odd}.yaml"], ["config", "show", "-s", odd], ["config", "show", "-s", f"{odd}=1"]),
        *(["config", "show", "-s", f"sample.prompt={odd}"], ["config", "show", "-c", odd], ["runs", "show", odd]),
        *(
            ["sample", odd, "-p", odd, "--unknown", "error"],
            ["sample", odd, "--out", f"{odd}/x"],
            ["board", "--in", odd],
        ),
        *(["sample", odd, "--file", odd], ["config", "show", "-s", f"model.n_layer={odd}"]),
    ]
    found = {}
    for command in commands:
        code, shown = at_a_terminal(monkeypatch, *command)
        if raw := sorted({c for c in shown if not (c.isprintable() or c in "\n\t")}):
            found[ascii(command)] = raw
        assert code in (0, 1, 2), shown
        assert "Traceback" not in shown
    assert found == {}


# ---- signals, and a terminal that is gone ----


TRAIN = ["-c", "tiny", "-s", "runtime.device=cpu", "-s", "runtime.compile=false", "-s", "sample.preview=0"]
TRAIN += ["-s", "train.patience=0", "--name", "r"]


@pytest.fixture
def raised(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, Any]]:
    """The signals that the handlers raise again, each with its handler at that time."""
    found: list[tuple[int, Any]] = []
    monkeypatch.setattr(signal, "raise_signal", lambda number: found.append((number, signal.getsignal(number))))
    return found


@pytest.fixture
def send(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """A function that sends signals to this process at times of a fake clock, such as "INT@0 TERM@0.5"."""
    now = 0.0
    monkeypatch.setattr(signals, "time", SimpleNamespace(monotonic=lambda: now))

    def send(sent: str) -> None:
        nonlocal now
        for name, seconds in (word.split("@") for word in sent.split()):
            now = float(seconds)
            os.kill(os.getpid(), signal.Signals[f"SIG{name}"])

    return send


def test_without_a_signal_the_handlers_are_restored() -> None:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    with Interrupts() as interrupts:
        assert interrupts.signal is None
        assert all(signal.getsignal(number) not in before for number in numbers)
    assert [signal.getsignal(number) for number in numbers] == before


@pytest.mark.parametrize(
    ("sent", "noted", "quits"),
    [
        ("INT@0 TERM@0 INT@0.99", "INT", None),
        ("TERM@0 INT@0.5 TERM@0.7", "TERM", None),
        ("INT@0 INT@1", "INT", "INT"),
        ("INT@0 INT@0.2 TERM@1.1", "INT", "TERM"),
        ("HUP@0 HUP@0 HUP@5", "HUP", None),
        ("INT@0 HUP@5", "INT", None),
        ("HUP@0 TERM@0.1 HUP@0.2", "TERM", None),
        ("HUP@0 TERM@5 INT@5.5", "TERM", None),
        ("HUP@0 TERM@5 INT@6", "TERM", "INT"),
    ],
)
def test_signals_within_a_second_count_as_one_and_a_later_one_quits(
    send: Any, raised: list[tuple[int, Any]], sent: str, noted: str, quits: str | None
) -> None:
    previous = {name: signal.getsignal(signal.Signals[f"SIG{name}"]) for name in ("INT", "TERM")}
    with Interrupts() as interrupts:
        send(sent)
        assert interrupts.signal == signal.Signals[f"SIG{noted}"]
        assert raised == ([(signal.Signals[f"SIG{quits}"], previous[quits])] if quits else [])


def test_after_the_block_the_second_of_a_pair_is_ignored_and_a_later_signal_is_not(
    send: Any, raised: list[tuple[int, Any]]
) -> None:
    previous, other = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with Interrupts():
        send("INT@0")
    send("TERM@0.5")
    assert raised == []
    send("TERM@2")
    assert raised == [(signal.SIGTERM, previous)]
    assert signal.getsignal(signal.SIGINT) is other


def test_a_signal_right_after_an_error_does_not_interrupt_its_report(send: Any, raised: list[tuple[int, Any]]) -> None:
    signal.signal(signal.SIGTERM, lambda *_: pytest.fail("interrupted"))
    with suppress(ValueError), Interrupts():
        raise ValueError("another process was killed")
    send("TERM@0.5")
    assert raised == []
    send("TERM@2")
    assert [number for number, _ in raised] == [signal.SIGTERM]


@pytest.mark.parametrize(("name", "error"), [("SIGINT", KeyboardInterrupt), ("SIGTERM", SystemExit)])
def test_a_signal_in_an_import_waits_for_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, error: type[BaseException]
) -> None:
    """The imported module would swallow the exception."""
    swallow = (
        f"import signal\ntry: signal.raise_signal(signal.{name}), sum(range(1000))\nexcept BaseException: raise OSError"
    )
    (tmp_path / f"swallows_{name}.py").write_text(swallow)
    monkeypatch.syspath_prepend(tmp_path)
    handle(getattr(signal, name))
    module = importlib.import_module(f"swallows_{name}")
    with pytest.raises(error):
        threading.Event().wait(HANG)
    assert module.signal is signal


def test_a_signal_of_another_process_counts_as_the_first_of_a_pair(send: Any, raised: list[tuple[int, Any]]) -> None:
    with Interrupts() as interrupts:
        interrupts.adopt(signal.SIGTERM)
    assert interrupts.signal == signal.SIGTERM
    send("TERM@0.5")
    assert raised == []
    send("TERM@2")
    assert [number for number, _ in raised] == [signal.SIGTERM]


def train_at_a_terminal_that_closes(folder: Path, prefix: str, steps: int) -> int:
    """Close the terminal of a training run after its first evaluation. Return the exit code, as in a shell."""
    (folder / "text.txt").write_text("to be or not to be, that is the question. " * 60, encoding="utf-8")
    command = [sys.executable, "-m", "minigpt", "train", "text.txt", *TRAIN, "-s", f"train.steps={steps}"]
    terminal, inside = os.openpty()
    # This process may have threads, so it runs no code between fork and exec. The child takes the terminal itself.
    take = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execvp(sys.argv[1], sys.argv[1:])"
    running = subprocess.Popen(
        [sys.executable, "-c", take, "sh", "-c", f'{prefix} exec "$0" "$@"', *command],
        cwd=folder, env=environment(), stdin=inside, stdout=inside, stderr=inside, start_new_session=True,
    )  # fmt: skip
    os.close(inside)
    shown = b""
    while b"step 0:" not in shown:
        piece = os.read(terminal, 1024)
        assert piece, shown
        shown += piece
    os.close(terminal)
    return running.wait(HANG)


def test_the_first_ctrl_c_is_answered_at_once_at_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = os.openpty()
    with monkeypatch.context() as patch, open(theirs, "w", encoding="utf-8") as stream:
        patch.setattr(sys, "stderr", stream)
        for numbers in ([signal.SIGTERM], [signal.SIGINT, signal.SIGINT]):
            with Interrupts():
                for number in numbers:
                    os.kill(os.getpid(), number)
    line = "\r\nsaving after this step; press Ctrl-C again to quit without saving\r\n"
    assert read_all(ours).decode() == line


@pytest.mark.slow
def test_a_closed_terminal_saves(tmp_path: Path) -> None:
    assert train_at_a_terminal_that_closes(tmp_path, "", 1_000_000) == 128 + signal.SIGHUP
    assert checkpoint_steps(tmp_path / "runs/r")[-1] < 1_000_000


@pytest.mark.slow
def test_a_run_that_ignores_sighup_trains_to_its_end(tmp_path: Path) -> None:
    """With nohup or disown, the run continues, and every write to the terminal fails."""
    assert train_at_a_terminal_that_closes(tmp_path, "trap '' HUP;", 30) == 0
    assert checkpoint_steps(tmp_path / "runs/r")[-1] == 30


@pytest.mark.slow
def test_the_reader_of_the_output_may_exit(tmp_path: Path) -> None:
    """An example is `minigpt train 2>&1 | head -1`."""
    (tmp_path / "text.txt").write_text("to be or not to be, that is the question. " * 60, encoding="utf-8")
    command = [sys.executable, "-m", "minigpt", "train", "text.txt", *TRAIN, "-s", "train.steps=20"]
    with subprocess.Popen(command, cwd=tmp_path, env=environment(), stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr
        assert "characters" in next(process.stderr)
        process.stderr.close()
        assert process.wait(HANG) == 0
    assert checkpoint_steps(tmp_path / "runs/r")[-1] == 20


def test_a_full_disk_neither_ends_the_process_nor_closes_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = os.fstat(2)

    def full(text: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(sys, "stderr", SimpleNamespace(isatty=lambda: False, fileno=lambda: 2, write=full))
    STDERR.write("a line\n")
    assert os.path.samestat(os.fstat(2), kept)
