"""What a stranger put into a vocabulary, a name or an error is shown at a terminal and does not drive it.

And a terminal that asks a run to end, or is closed, loses nothing of it.
"""

import errno
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from command_line import Cli, environment
from forgery import MODEL, STEPS, TEXT, TOKENIZER, forge
from safetensors.torch import load, save

from minigpt.cli.main import main
from minigpt.storage.metadata import METADATA
from minigpt.storage.runs import checkpoint_steps, step_folder
from minigpt.training.signals import Interrupts, ignore_broken_stderr

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals as POSIX has them"),
    pytest.mark.usefixtures("empty_folder"),
]

EVIL = "\x1b\x07\r\x08\x7f\x9b\x85\u202e\u2066\u2028\x00"
VISIBLE = "abc"


@pytest.fixture
def run(finished_run: Path, empty_folder: Path) -> Path:
    """A copy of the finished run; it is `r` under runs/ of the current folder."""
    return Path(shutil.copytree(finished_run, empty_folder / "runs/r"))


@pytest.fixture
def evil(run: Path) -> Path:
    """The run with a vocabulary of control characters, which it therefore draws."""
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


def at_a_terminal(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[int, str]:
    """Call the command line with a pseudo-terminal for its output; return its exit code and what was shown."""
    ours, theirs = os.openpty()
    os.set_blocking(ours, False)
    shown = bytearray()
    ended = threading.Event()

    def read() -> None:
        while not ended.wait(0.002):
            with suppress(OSError):  # nothing yet, or closed
                while chunk := os.read(ours, 65536):
                    shown.extend(chunk)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        with monkeypatch.context() as patch, open(theirs, "w", encoding="utf-8", newline="") as terminal:
            patch.setattr(sys, "stdout", terminal)
            patch.setattr(sys, "stderr", terminal)
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
            patch.setattr(sys, "argv", ["minigpt", *arguments])
            with pytest.raises(SystemExit) as end:
                main()
            terminal.flush()
            time.sleep(0.05)
    finally:
        ended.set()
        reader.join()
        os.close(ours)
    return int(end.value.code or 0), bytes(shown).decode("utf-8").replace("\r\n", "\n")


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
        *(["runs"], ["runs", "--verify"], ["runs", "--json"], ["sample", odd, "-l", "1"], ["eval", odd, f"{odd}.txt"]),
        *(["train", "--resume", odd], ["train", "--resume", f"runs/{odd}"], ["sample", f"no{odd}"], ["eval", "r", odd]),
        *(["sample", odd, "--checkpoint", odd], ["sample", odd, "--unknown", odd], ["sample", odd, "--device", odd]),
        *(["data", "info", f"{odd}.txt"], ["data", "info", f"no{odd}.txt"], ["data", "info", f"builtin:{odd}"]),
        *(["data", "info", f"{odd}.txt", "--json"], ["data", "info", f"{odd}.txt", "--encoding", odd]),
        *(["config", "show", "-c", f"{odd}.yaml"], ["config", "show", "-s", odd], ["config", "show", "-s", f"{odd}=1"]),
        *(["config", "show", "-s", f"sample.prompt={odd}"], ["config", "show", "-c", odd], ["data", "get", odd]),
        *(["sample", odd, "-p", odd, "--unknown", "error"], ["sample", odd, "--out", f"{odd}/x"], ["board", odd]),
        *(["sample", odd, "--prompt-file", odd], ["config", "show", "-s", f"model.n_layer={odd}"]),
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


def test_signals_are_noted_once_and_the_handlers_come_back() -> None:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    with Interrupts() as interrupts:
        assert interrupts.signal is None
        os.kill(os.getpid(), signal.SIGTERM)
        assert interrupts.signal == signal.SIGTERM
        assert signal.getsignal(signal.SIGINT) == signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert [signal.getsignal(number) for number in numbers] == before


@pytest.mark.parametrize("sent", [[signal.SIGINT], [signal.SIGTERM], [signal.SIGINT, signal.SIGINT]], ids=str)
def test_one_signal_saves_and_exits_with_its_code_and_a_second_ends_at_once(
    tmp_path: Path, sent: list[signal.Signals]
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("to be or not to be, that is the question. " * 60, encoding="utf-8")
    slow = (
        "import minigpt.training.loop as t, sys, time; b = t.batch_at; "
        "t.batch_at = lambda *a, **k: (print('in a step', file=sys.stderr), time.sleep(0.5), b(*a, **k))[2]"
    )
    command = [
        sys.executable,
        "-c",
        f"{slow}; from minigpt.cli.main import main; main()",
        "train",
        "text.txt",
        "-c",
        "tiny",
    ]
    overrides = ["--set", "runtime.compile=false", "--set", "train.steps=1000", "--set", "sample.preview=0"]
    with subprocess.Popen(
        [*command, *overrides, "--name", "r"], cwd=tmp_path, stderr=subprocess.PIPE, text=True, encoding="utf-8"
    ) as process:
        assert process.stderr is not None
        lines = [next(line for line in process.stderr if line.startswith(start)) for start in ("step 0:", "in a step")]
        for number in sent:
            process.send_signal(number)
            time.sleep(0.15)  # within the same step, which takes half a second
        lines += process.stderr.readlines()
    steps = checkpoint_steps(tmp_path / "runs/r")
    if len(sent) == 2:
        assert process.returncode == -signal.SIGINT
        assert steps == []
        return
    assert process.returncode == 128 + sent[0]
    assert 1 <= steps[-1] < 20
    assert "minigpt train --resume r" in lines[-1]
    assert not any("Traceback" in line for line in lines)


TRAIN = [
    "-c",
    "tiny",
    "-s",
    "runtime.device=cpu",
    "-s",
    "runtime.compile=false",
    "-s",
    "sample.preview=0",
    "-s",
    "train.patience=0",
    "--name",
    "r",
]


def train_at_a_terminal_that_closes(folder: Path, prefix: str, steps: int) -> int:
    """Close the terminal of a training run after its first evaluation; return how that ended, as a shell would say."""
    (folder / "text.txt").write_text("to be or not to be, that is the question. " * 60, encoding="utf-8")
    command = [sys.executable, "-m", "minigpt", "train", "text.txt", *TRAIN, "-s", f"train.steps={steps}"]
    terminal, inside = os.openpty()
    # A process with threads, as this one may be, had better not fork: the new one takes the terminal by itself.
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
    return running.wait(120)


def test_the_first_ctrl_c_is_answered_at_once_at_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[bytes] = []
    monkeypatch.setattr(os, "isatty", lambda descriptor: True)
    monkeypatch.setattr(os, "write", lambda descriptor, text: written.append(text))
    for number in (signal.SIGTERM, signal.SIGINT):
        with Interrupts():
            os.kill(os.getpid(), number)
    assert written == [b"\nsaving after this step; press Ctrl-C again to quit without saving\n"]


def test_a_ctrl_c_that_cannot_be_answered_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "isatty", lambda descriptor: True)
    monkeypatch.setattr(os, "write", full)
    with Interrupts() as interrupts:
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupts.signal == signal.SIGINT


def test_a_closed_terminal_saves(tmp_path: Path) -> None:
    assert train_at_a_terminal_that_closes(tmp_path, "", 1_000_000) == 128 + signal.SIGHUP
    assert checkpoint_steps(tmp_path / "runs/r")[-1] < 1_000_000


def test_a_run_that_ignores_its_terminal_closing_goes_on_to_its_end(tmp_path: Path) -> None:
    """As with nohup, or disown; each line that it would say fails from then on."""
    assert train_at_a_terminal_that_closes(tmp_path, "trap '' HUP;", 30) == 0
    assert checkpoint_steps(tmp_path / "runs/r")[-1] == 30


@pytest.mark.parametrize("sent", ["SIGHUP SIGHUP", "SIGINT SIGHUP", "SIGTERM SIGHUP", "SIGHUP SIGTERM SIGHUP"])
def test_no_hangup_ends_a_run_before_it_is_saved(sent: str) -> None:
    """A shell and the system both send one for the same terminal; a logout also sends SIGTERM, before or after."""
    numbers = [signal.Signals[name] for name in sent.split()]
    with Interrupts() as interrupts:
        for number in numbers:
            assert signal.getsignal(number) != signal.SIG_DFL
            os.kill(os.getpid(), number)
        assert interrupts.signal == next((n for n in numbers if n != signal.SIGHUP), signal.SIGHUP)
        last = signal.SIG_DFL if len(set(numbers)) > 1 else interrupts._note
        assert signal.getsignal(signal.SIGTERM) == last


def test_a_reader_of_what_training_says_may_end(tmp_path: Path) -> None:
    """As in `minigpt train 2>&1 | head -1`."""
    (tmp_path / "text.txt").write_text("to be or not to be, that is the question. " * 60, encoding="utf-8")
    command = [sys.executable, "-m", "minigpt", "train", "text.txt", *TRAIN, "-s", "train.steps=20"]
    with subprocess.Popen(command, cwd=tmp_path, env=environment(), stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr
        assert "characters" in next(process.stderr)
        process.stderr.close()
        assert process.wait(60) == 0
    assert checkpoint_steps(tmp_path / "runs/r")[-1] == 20


def test_a_line_that_a_full_disk_refuses_ends_nothing_and_silences_nothing() -> None:
    kept = os.fstat(2)
    for number in (errno.ENOSPC, errno.EDQUOT):
        with ignore_broken_stderr():
            raise OSError(number, os.strerror(number))
    assert os.path.samestat(os.fstat(2), kept)
    with pytest.raises(ValueError, match="no OSError"), ignore_broken_stderr():
        raise ValueError("no OSError")
