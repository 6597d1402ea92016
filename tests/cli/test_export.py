"""`minigpt export` and `minigpt import`."""

import errno
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_args

import pytest
from command_line import VERSE, Cli
from exports import made, nanogpt_file

from minigpt.cli.export import export
from minigpt.interop.export import FORMATS
from minigpt.storage import checkpoint
from minigpt.text.tokenizer import CharTokenizer


def test_a_run_is_exported_into_a_new_folder(cli: Cli, run: Path) -> None:
    done = cli("export", "verse-1", "--to", "hf", "-o", "out", "--json").json
    assert set(done["bytes"]) == {path.name for path in Path("out").iterdir()}
    assert "pipeline" in done["usage"]
    assert "it exists; name a new folder" in cli("export", "--to", "hf", "-o", "out").error
    assert "it exists" in cli("export", "--to", "hf", "-o", run).error
    assert "belongs to run" in cli("export", "--to", "hf", "-o", run / "checkpoints/new").error
    assert "available runs: verse-1" in cli("export", "no", "--to", "hf", "-o", "other").error


def test_an_imported_nanogpt_continues_a_text(cli: Cli, empty_folder: Path) -> None:
    Path("verse.txt").write_text(VERSE, encoding="utf-8")
    made_up = made(CharTokenizer(VERSE), family="classic", activation="gelu_exact")
    nanogpt_file(Path("ckpt.pt"), made_up)
    assert cli("import", "ckpt.pt", "--file", "verse.txt").code == 0
    assert len(cli("sample", "-l", "30", "-p", "Rough").out) == len("Rough") + 30 + 1
    assert cli("eval").code == cli("train", "verse.txt", "--from", "verse-1", "-s", "train.steps=1").code == 0


def test_an_import_says_that_it_retries(cli: Cli, empty_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: Any, **named: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(checkpoint, "publish", full)
    monkeypatch.setattr(checkpoint, "RETRY_PAUSES", (0.0,))
    assert "No space left on device; retrying in 0 s" in cli("import", "stories").err


def test_the_shipped_model_is_a_run_like_any_other(cli: Cli, empty_folder: Path) -> None:
    assert "minigpt inspect stories-1 --open" in cli("import", "stories").err
    assert "run stories-2" in cli("import", "stories").err
    assert "already exists" in cli("import", "stories", "--name", "stories-1").error
    assert "intact" in cli("runs", "verify").out
    assert "minigpt train TEXT --from stories-1" in cli("train", "--resume", "stories-1").error
    small = ("-s", "train.steps=1", "-s", "runtime.compile=false")
    assert cli("train", "builtin:stories:5000", "--from", "stories-1", *small).code == 0


def test_every_format_is_an_option() -> None:
    option = export.__annotations__["to"]
    assert set(get_args(get_args(option)[0])) == set(FORMATS)


@pytest.mark.parametrize(
    ("to", "package"),
    [("gguf", "llama_cpp"), pytest.param("onnx", "onnxruntime", marks=pytest.mark.slow)],
)
def test_an_export_prints_how_well_the_other_program_agrees(cli: Cli, run: Path, to: str, package: str) -> None:
    pytest.importorskip("gguf" if to == "gguf" else "onnxscript")
    done = cli("export", "--to", to, "-o", "out")
    assert done.code == 0
    assert f"wrote out from {run}" in done.err
    if find_spec(package):
        assert "greedy text          equal" in done.out
        assert float(done.out.split("largest difference   ")[1].split(",")[0]) < 0.01
    else:
        assert "not compared: " in done.out
