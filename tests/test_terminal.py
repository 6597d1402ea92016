"""What a stranger put into a vocabulary, a name or an error is shown at a terminal and does not drive it."""
# ruff: noqa: F811 - pytest hands a fixture to a test by its name

import io
import json
import os
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from safetensors.torch import load, save
from test_cli import Cli, cli, empty_folder  # noqa: F401 - two are fixtures
from test_hostile import MODEL, STEPS, TEXT, TOKENIZER, forge, run, whole  # noqa: F401 - two are fixtures

from minigpt.cli import main
from minigpt.meta import META
from minigpt.runs import step_folder

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals as POSIX has them")

EVIL = "\x1b\x07\r\x08\x7f\x9b\x85\u202e\u2066\u2028\x00"
VISIBLE = "abc"


@pytest.fixture
def evil(run: Path) -> Path:
    """The run with a vocabulary of control characters, which it therefore draws."""
    chars = "".join(sorted(EVIL + VISIBLE + "\n\t"))
    torch.manual_seed(0)
    for step in STEPS:
        folder = step_folder(run, step)
        weights = load((folder / MODEL).read_bytes())
        weights["token_embedding.weight"] = torch.randn(len(chars), 8)
        meta = json.loads((folder / META).read_bytes())
        meta["vocab_size"] = len(chars)
        meta["parameters"] = sum(tensor.numel() for tensor in weights.values())
        meta["corpus"]["name"] = f"corpus{EVIL}"
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
