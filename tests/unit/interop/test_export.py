"""What every export promises: a complete folder, or none."""

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exports import SETTINGS, made
from small_models import FAMILY_NAMES

from minigpt.errors import NoCounterpartError, UserError
from minigpt.interop import plain
from minigpt.interop.card import ABOUT
from minigpt.interop.export import FORMATS, check, export
from minigpt.storage.checkpoint import Checkpoint

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    "settings",
    [
        *SETTINGS,
        *({"family": name} for name in FAMILY_NAMES),
        {"family": "classic", "position": "sinusoidal"},
        {"family": "modern", "position": "none", "qk_norm": False},
        {"family": "lstm", "bias": False},
    ],
    ids=str,
)
def test_the_readme_documents_every_tensor(settings: dict[str, Any], empty_folder: Path) -> None:
    checkpoint = made(**settings)
    export(checkpoint, "safetensors", Path("out"))
    agreement = check(checkpoint, "safetensors", Path("out"))
    assert agreement is not None
    assert agreement.difference == 0
    readme = Path("out/README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"\| `(\S+\.\S+)` \| [\d ×]+ \|\n", readme)) == set(checkpoint.weights)
    assert all((ROOT / file).exists() for file in re.findall(r"`(minigpt/\S+\.py)`", readme))


def test_an_export_has_no_loss_of_other_weights(tmp_path: Path) -> None:
    """A run that was stopped saves weights that nobody has evaluated, with the loss of an earlier step."""
    later = made()
    later.metadata.state.step = 11
    for name, checkpoint, loss in (("best", made(), "1.5000 nats"), ("later", later, "unknown")):
        export(checkpoint, "hf", tmp_path / name)
        assert f"| validation loss | {loss}" in (tmp_path / name / "README.md").read_text(encoding="utf-8")
        about = json.loads((tmp_path / name / ABOUT).read_text(encoding="utf-8"))
        assert about["validation_loss"] == (1.5 if name == "best" else None)


def test_an_export_names_no_folder_of_the_user(tmp_path: Path) -> None:
    for to in ("safetensors", "hf"):
        export(made(), to, tmp_path / to)
        for path in (tmp_path / to).iterdir():
            assert b"a/folder" not in path.read_bytes(), path


def test_only_a_new_folder_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(checkpoint: Checkpoint, folder: Path) -> None:
        (tmp_path / "late").mkdir()
        (tmp_path / "late/precious").write_text("x")

    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    monkeypatch.setattr(plain, "write", slow)
    for name in ("file", "file/out", "empty", "no/out", "late"):
        with pytest.raises(UserError, match="cannot write"):
            export(made(), "safetensors", tmp_path / name)
    assert {path.name for path in tmp_path.rglob("*")} == {"file", "empty", "late", "precious"}


def test_a_failed_write_names_the_folder_and_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(checkpoint: Checkpoint, folder: Path) -> None:
        raise OSError("4096 requested and 0 written")  # what NumPy says

    monkeypatch.setattr(plain, "write", full)
    with pytest.raises(UserError, match="out: its disk may be full"):
        export(made(), "safetensors", tmp_path / "out")


def test_a_failed_export_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(arrays: object, path: Path) -> None:
        path.write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(plain, "save_arrays", interrupted)
    with pytest.raises(KeyboardInterrupt):
        export(made(), "safetensors", tmp_path / "out")
    with pytest.raises(NoCounterpartError):
        export(made(family="gru"), "hf", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_without_the_other_program_nothing_is_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(folder: Path) -> None:
        raise ImportError

    export(made(), "hf", tmp_path / "out")
    monkeypatch.setattr(FORMATS["hf"], "load", absent)
    assert check(made(), "hf", tmp_path / "out") is None


def test_a_result_that_is_not_a_number_is_a_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = made()
    shape = checkpoint.tokenizer.vocab_size
    monkeypatch.setattr(FORMATS["hf"], "load", lambda folder: lambda ids: np.full((len(ids), shape), np.nan))
    agreement = check(checkpoint, "hf", tmp_path)
    assert agreement
    assert math.isnan(agreement.difference)
