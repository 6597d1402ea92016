"""What every export promises: a complete folder, or none."""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from exports import SETTINGS, made
from small_models import FAMILY_NAMES

from minigpt.errors import FolderNotEmptyError, NoCounterpartError, UserError
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
    assert set(re.findall(r"\| `(\S+\.\S+)` \| [\d ×]+ \|", readme)) == set(checkpoint.weights)
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


def test_only_an_unchanged_export_is_replaced(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    export(made(), "hf", out)
    with pytest.raises(FolderNotEmptyError) as caught:
        export(made(), "safetensors", out)
    assert caught.value.is_export
    export(made(), "safetensors", out, force=True)
    assert not (out / "config.json").exists()
    before = (out / "README.md").read_text(encoding="utf-8")
    (out / "README.md").write_text(f"{before}my license\n", encoding="utf-8")
    with pytest.raises(FolderNotEmptyError, match=r"README\.md"):
        export(made(), "hf", out, force=True)
    (out / "README.md").write_text(before, encoding="utf-8")
    (out / "mine").mkdir()
    with pytest.raises(FolderNotEmptyError, match="mine"):
        export(made(), "hf", out, force=True)
    assert {path.name for path in out.iterdir()} >= {"mine", "config.yaml"}
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / ABOUT).write_text("{}")
    with pytest.raises(FolderNotEmptyError, match=ABOUT):
        export(made(), "hf", notes, force=True)


def test_a_folder_that_appears_meanwhile_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(checkpoint: Checkpoint, folder: Path) -> None:
        (tmp_path / "out").mkdir()
        (tmp_path / "out/precious").write_text("x")

    monkeypatch.setattr(plain, "write", slow)
    with pytest.raises(FolderNotEmptyError, match="precious"):
        export(made(), "safetensors", tmp_path / "out")
    assert [path.name for path in tmp_path.rglob("*")] == ["out", "precious"]


@pytest.mark.skipif(os.name != "posix", reason="needs permissions of POSIX")
def test_a_private_folder_stays_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written, modes = plain.write, []

    def write(checkpoint: Checkpoint, folder: Path) -> None:
        modes.append(folder.stat().st_mode & 0o777)
        written(checkpoint, folder)

    monkeypatch.setattr(plain, "write", write)
    out = tmp_path / "out"
    out.mkdir(mode=0o700)
    for _ in range(2):
        export(made(), "safetensors", out, force=True)
        assert out.stat().st_mode & 0o777 == modes.pop() == 0o700
    out.chmod(0o770)
    export(made(), "safetensors", out, force=True)
    assert out.stat().st_mode & 0o777 == 0o770


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


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for folder in (tmp_path / "file", tmp_path / "file/out", tmp_path / "no/out"):
        with pytest.raises(UserError, match="cannot write"):
            export(made(), "safetensors", folder)


def test_without_the_other_program_nothing_is_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(folder: Path) -> None:
        raise ImportError

    export(made(), "hf", tmp_path / "out")
    monkeypatch.setattr(FORMATS["hf"], "load", absent)
    assert check(made(), "hf", tmp_path / "out") is None
