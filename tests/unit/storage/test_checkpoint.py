"""Checkpoints are complete or absent, keep what a run needs, and any change to their bytes is noticed."""

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
import safetensors.numpy
import torch
from forgery import forge
from safetensors import SafetensorError

from minigpt import files
from minigpt.config import resolve as configuration
from minigpt.errors import CheckpointError, InsufficientMemoryError, TrainingError, UserError
from minigpt.model.gpt import GPT
from minigpt.model.load import load_model
from minigpt.storage import checkpoint, runs
from minigpt.storage.checkpoint import (
    Checkpoint,
    Snapshot,
    load_checkpoint,
    load_optimizer,
    save_checkpoint,
)
from minigpt.storage.metadata import (
    FILES,
    METADATA,
    OPTIMIZER,
    Environment,
    Metadata,
    TrainState,
    read_metadata,
    verify,
)
from minigpt.storage.runs import best_step, checkpoint_steps, repair, step_folder
from minigpt.text.tokenizer import CharTokenizer
from minigpt.training.setup import newest_intact

TOKENIZER = CharTokenizer("abc \n")
CONFIG = configuration.resolve(
    ("test", {"model.n_layer": 1, "model.n_head": 1, "model.n_embd": 8, "model.context": 8, "train.steps": 9})
).config
UNIT = {name: tensor.numpy() for name, tensor in GPT(CONFIG.model, TOKENIZER.vocab_size).state_dict().items()}
ALL = (*FILES, METADATA)


def metadata_of(state: TrainState) -> Metadata:
    return Metadata(
        corpus="abc",
        fingerprint="f",
        vocab_size=TOKENIZER.vocab_size,
        parameters=sum(array.size for array in UNIT.values()),
        runtime=Environment(device="cpu", dtype="float32", compile=False, threads=1),
        state=state,
    )


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "RETRY_PAUSES", (0.0, 0.0))


def save(
    run: Path,
    step: int,
    *,
    best: int | None = None,
    keep_last: int = 1,
    scale: float = 1.0,
    best_loss: float | None = 1.25,
    log: Callable[[str], None] = lambda line: None,
) -> Path:
    """Save a checkpoint of `step` with all weights multiplied by `scale`."""
    weights = {name: array * np.float32(scale) for name, array in UNIT.items()}
    state = TrainState(step=step, best_step=step if best is None else best, best_loss=best_loss)
    settings = CONFIG.model_copy(update={"train": CONFIG.train.model_copy(update={"keep_last": keep_last})})
    run.mkdir(parents=True, exist_ok=True)
    optimizer = {"exp_avg/norm.weight": np.full((8,), scale, np.float32)}
    return save_checkpoint(run, settings, TOKENIZER, metadata_of(state), Snapshot(weights, optimizer), log)


def scale_of(loaded: Checkpoint) -> float:
    """Return the scale of loaded weights. Fail if they come from different checkpoints."""
    ratios = [(loaded.weights[name] / unit)[unit != 0].mean().item() for name, unit in UNIT.items() if unit.any()]
    (scale,) = {round(ratio, 3) for ratio in ratios}
    return scale


def listed(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "checkpoints").iterdir())


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("run"), 5)


# --- save and load -----------------------------------------------------------------------------------


def test_a_checkpoint_has_five_files(tmp_path: Path) -> None:
    folder = save(tmp_path, 5)
    assert folder == tmp_path / "checkpoints/step-00000005"
    assert sorted(path.name for path in folder.iterdir()) == sorted(ALL)
    assert listed(tmp_path) == ["step-00000005"]
    assert set(json.loads((folder / METADATA).read_text(encoding="utf-8"))["sha256"]) == set(ALL)
    if os.name == "posix":  # safetensors creates files that only their owner can read
        assert len({path.stat().st_mode for path in folder.iterdir()}) == 1


def test_loading_returns_what_was_saved_by_name_path_and_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save(Path("runs/r"), 5, best=5, keep_last=2)
    save(Path("runs/r"), 6, best=5, keep_last=2, scale=2.0)
    cases: list[tuple[str | Path, str | None, int]] = [
        ("last", None, 5), ("r", None, 5), ("r", "best", 5), ("r", "last", 6), ("r", "6", 6),
        (tmp_path / "runs/r", "last", 6), (tmp_path / "runs/r/checkpoints/step-00000006", None, 6),
    ]  # fmt: skip
    for run, which, step in cases:
        loaded = load_checkpoint(run, which)
        assert loaded.metadata.state == TrainState(step=step, best_step=5, best_loss=1.25), (run, which)
        assert loaded.config == CONFIG.model_copy(update={"train": CONFIG.train.model_copy(update={"keep_last": 2})})
        assert loaded.tokenizer.to_json() == TOKENIZER.to_json()
    assert scale_of(loaded) == 2
    assert load_optimizer(loaded)["exp_avg/norm.weight"].tolist() == [2.0] * 8
    model = load_model(loaded)
    assert not model.training
    assert all(np.array_equal(model.state_dict()[name].numpy(), array) for name, array in loaded.weights.items())


def test_weights_alone_load_but_cannot_be_resumed(intact: Path, tmp_path: Path) -> None:
    shutil.copytree(intact, tmp_path / "shared")
    (tmp_path / "shared" / OPTIMIZER).unlink()
    loaded = load_checkpoint(tmp_path / "shared")
    assert load_model(loaded).config == CONFIG.model
    for resume in (lambda: load_optimizer(loaded), lambda: verify(loaded.path)):
        with pytest.raises(CheckpointError, match=r"^cannot resume from .*shared: optimizer state is missing$"):
            resume()


def test_zero_dimensional_arrays_and_views_are_saved_as_they_are(tmp_path: Path) -> None:
    arrays = {"scalar": np.full((), 3, np.float32), "view": np.arange(6, dtype=np.float32).reshape(2, 3).T}
    save_checkpoint(tmp_path, CONFIG, TOKENIZER, metadata_of(TrainState(step=5)), Snapshot(UNIT, arrays))
    found = load_optimizer(load_checkpoint(tmp_path))
    assert found["scalar"].shape == ()
    assert np.array_equal(found["view"], arrays["view"])


@pytest.mark.parametrize(("keep_last", "kept"), [(1, [2, 9]), (3, [2, 7, 8, 9]), (20, list(range(1, 10)))])
def test_the_newest_and_the_best_are_kept(tmp_path: Path, keep_last: int, kept: list[int]) -> None:
    for step in range(1, 10):
        save(tmp_path, step, best=min(step, 2), keep_last=keep_last)
        (step_folder(tmp_path, step) / ".DS_Store").touch()  # as macOS does if someone looks at the folder
    assert checkpoint_steps(tmp_path) == kept
    assert best_step(tmp_path) == 2


def test_a_checkpoint_with_a_file_of_somebody_is_kept(tmp_path: Path) -> None:
    for step in range(1, 4):
        save(tmp_path, step, best=step, keep_last=1)
        (step_folder(tmp_path, 1) / "notes.txt").touch()
    assert checkpoint_steps(tmp_path) == [1, 3]


def test_a_model_without_a_validation_loss_is_not_the_best(tmp_path: Path) -> None:
    save(tmp_path, 0, best_loss=None, keep_last=2)
    save(tmp_path, 4, best=0, best_loss=None, keep_last=2)
    assert (checkpoint_steps(tmp_path), best_step(tmp_path)) == ([0, 4], 4)
    save(tmp_path, 8, best=0, best_loss=None)
    assert checkpoint_steps(tmp_path) == [8]


def test_saving_a_step_again_replaces_it(tmp_path: Path) -> None:
    save(tmp_path, 5)
    save(tmp_path, 5, scale=3.0)
    assert scale_of(load_checkpoint(tmp_path)) == 3
    assert listed(tmp_path) == ["step-00000005"]


# --- damage ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
def test_any_change_to_a_file_is_an_error_of_one_line(intact: Path, tmp_path: Path, name: str) -> None:
    content = (intact / name).read_bytes()
    middle = content.index(b"1.25") if name == METADATA else len(content) // 2
    damaged = {
        "flipped": content[:middle] + bytes([content[middle] ^ 3]) + content[middle + 1 :],
        "truncated": content[:-20],
        "empty": b"",
        "longer": content[:-1] + b" {}",
        "another file": (intact / ALL[ALL.index(name) - 1]).read_bytes(),
    }
    for what, replacement in damaged.items():
        folder = tmp_path / what
        shutil.copytree(intact, folder)
        (folder / name).write_bytes(replacement)
        with pytest.raises(UserError, match=f"{name} has changed since it was saved|{name} is larger") as error:
            verify(folder)
        assert "\n" not in str(error.value)
        with pytest.raises(CheckpointError):
            load_optimizer(load_checkpoint(folder))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"norm.weight": np.ones((2, 4), np.float32)}, r"norm\.weight has shape \(2, 4\); expected shape \(8,\)"),
        ({"norm.weight": None}, r"norm\.weight is missing; expected shape \(8,\)"),
        ({"more": np.ones(3, np.float32)}, r"more has shape \(3,\); it is not part of the model"),
        ({"norm.weight": np.ones(8)}, r"norm\.weight must contain finite float32 or float16 values"),
        (
            {"norm.weight": np.full(8, np.nan, np.float32)},
            r"norm\.weight must contain finite float32 or float16 values",
        ),
    ],
)
def test_weights_that_do_not_fit_the_configuration_are_refused(
    tmp_path: Path, change: dict[str, np.ndarray | None], problem: str
) -> None:
    """The hashes match, because another program may have written the weights."""
    arrays = {name: array for name, array in {**UNIT, **change}.items() if array is not None}
    folder = save_checkpoint(tmp_path, CONFIG, TOKENIZER, metadata_of(TrainState(step=5)), Snapshot(arrays, {}))
    with pytest.raises(CheckpointError, match=problem):
        load_model(load_checkpoint(folder))


def test_no_array_is_read_from_a_pickle(tmp_path: Path, intact: Path) -> None:
    shutil.copytree(intact, tmp_path / "copy")
    for name in (OPTIMIZER, "model.safetensors"):
        torch.save({"a": torch.ones(1)}, tmp_path / "copy" / name)
        forge(tmp_path / "copy")
        with pytest.raises(CheckpointError, match="is not a valid safetensors file"):
            load_optimizer(load_checkpoint(tmp_path / "copy"))


def test_a_file_larger_than_memory_is_not_read(tmp_path: Path, intact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sparse file costs a stranger nothing and could take all memory."""
    shutil.copytree(intact, tmp_path / "copy")
    path = tmp_path / "copy/model.safetensors"
    monkeypatch.setattr(files, "free_memory", lambda: 2 * path.stat().st_size)
    load_checkpoint(tmp_path / "copy")
    monkeypatch.setattr(files, "free_memory", lambda: 2 * path.stat().st_size - 1)
    with pytest.raises(InsufficientMemoryError, match=r"model\.safetensors does not fit in memory"):
        load_checkpoint(tmp_path / "copy")
    verify(tmp_path / "copy")  # it is not damaged
    shutil.copytree(tmp_path / "copy", step_folder(tmp_path / "run", 7))
    assert newest_intact(tmp_path / "run")[1] == []  # a resume does not skip it


def test_the_error_of_a_damaged_checkpoint_names_its_run(tmp_path: Path) -> None:
    save(tmp_path, 5, best=5)
    path = step_folder(tmp_path, 5) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="has changed since it was saved") as error:
        load_checkpoint(tmp_path)
    assert error.value.run == tmp_path
    shutil.copytree(step_folder(tmp_path, 5), tmp_path / "copy")
    with pytest.raises(CheckpointError) as error:
        load_checkpoint(tmp_path / "copy")
    assert error.value.run is None


# --- a save that is killed ---------------------------------------------------------------------------


class Killed(BaseException):
    """Ends a save like SIGKILL."""


def kill_at(patch: pytest.MonkeyPatch, function: str, call: int) -> None:
    """Raise Killed at call number `call` of a function of `os`, and at every later call of any of them."""
    calls = 0

    def wrap(original: Callable[..., Any], is_counted: bool) -> Callable[..., Any]:
        def called(*arguments: Any, **named: Any) -> Any:
            nonlocal calls
            calls += is_counted
            if calls > call:
                raise Killed
            return original(*arguments, **named)

        return called

    for name in ("fsync", "rename", "replace", "rmdir", "unlink"):
        patch.setattr(os, name, wrap(getattr(os, name), name == function))


@pytest.mark.parametrize("function", ["fsync", "rename", "replace", "rmdir", "unlink"])
def test_a_save_that_is_killed_anywhere_is_repaired_at_the_next_start(tmp_path: Path, function: str) -> None:
    for call in range(40):
        run = tmp_path / str(call)
        save(run, 4, best=4)
        save(run, 5, best=4)
        finished = False
        with pytest.MonkeyPatch.context() as patch:
            kill_at(patch, function, call)
            try:
                save(run, 6, best=6)
                finished = True
            except Killed:
                pass
        newest = checkpoint_steps(run)[-1]
        assert newest in (5, 6)
        for which in ("best", "last"):
            assert load_checkpoint(run, which).metadata.step in (4, 5, 6)
        repair(run, read_metadata(step_folder(run, newest)).state)
        steps = checkpoint_steps(run)
        assert listed(run) == [*(step_folder(run, step).name for step in steps)]
        assert best_step(run) == (6 if newest == 6 else 4)
        for step in steps:
            verify(step_folder(run, step))
        if finished:
            return
    raise AssertionError("the save never finished; the range is too short")


def test_checkpoints_after_the_resumed_step_are_quarantined_and_kept(tmp_path: Path) -> None:
    """A run may fall back twice. The quarantined checkpoints may be all that is left of hours of training."""
    quarantined: list[Path] = []
    for scale in (1, 2):
        for step in (4, 5):
            save(tmp_path, step, best=4, keep_last=3, scale=scale)
        state = read_metadata(step_folder(tmp_path, 4)).state
        quarantined += repair(tmp_path, state)
        assert repair(tmp_path, state) == []
        assert best_step(tmp_path) == 4
    save(tmp_path, 9)
    assert checkpoint_steps(tmp_path) == [9]
    assert len(set(quarantined)) == 2
    for scale, path in enumerate(quarantined, start=1):
        path.rename(step_folder(tmp_path, 5))
        assert scale_of(load_checkpoint(tmp_path, 5)) == scale
        step_folder(tmp_path, 5).rename(path)


def test_a_best_checkpoint_that_is_gone_is_forgotten(tmp_path: Path) -> None:
    """It was pruned for a newer best, which is damaged. Otherwise sampling would look for it in vain."""
    save(tmp_path, 5, best=4)
    state = read_metadata(step_folder(tmp_path, 5)).state
    repair(tmp_path, state)
    assert (state.best_loss, state.best_step, state.best_checkpoint) == (None, 0, 5)


def test_repair_removes_temporary_files_only(tmp_path: Path) -> None:
    repair(tmp_path, TrainState())
    assert list(tmp_path.iterdir()) == []
    save(tmp_path, 5)
    ours = [f"{path}.{uuid4().hex}.tmp" for path in (".config.yaml", "checkpoints/.step-6")]
    for name in (*ours, ".config.yaml.swp", "checkpoints/.notes.txt"):
        (tmp_path / name).touch()
    repair(tmp_path, read_metadata(step_folder(tmp_path, 5)).state)
    assert listed(tmp_path) == [".notes.txt", "step-00000005"]
    assert [path.name for path in tmp_path.glob(".*")] == [".config.yaml.swp"]


# --- a disk that refuses -----------------------------------------------------------------------------


FULL = OSError(28, "No space left on device")


class Refusing:
    """Fail the calls of a save that write, from number `first` on, `times` times."""

    def __init__(self, first: int, times: int) -> None:
        self.calls, self.first, self.times = 0, first, times

    def wrap(self, function: Callable[..., Any], error: Exception = FULL) -> Callable[..., Any]:
        def called(*arguments: Any, **named: Any) -> Any:
            self.calls += 1
            if self.first <= self.calls < self.first + self.times:
                raise error
            return function(*arguments, **named)

        return called

    def patch(self, patch: pytest.MonkeyPatch) -> None:
        for name in ("fsync", "rename", "replace"):
            patch.setattr(os, name, self.wrap(getattr(os, name)))
        refused = SafetensorError(FULL.strerror)
        patch.setattr(safetensors.numpy, "save_file", self.wrap(safetensors.numpy.save_file, refused))


@pytest.mark.parametrize("times", [1, 10**9])
def test_a_save_that_fails_anywhere_is_repeated_or_leaves_the_checkpoint_before_it(tmp_path: Path, times: int) -> None:
    for failing in range(1, 100):
        run, lines = tmp_path / str(failing), list[str]()
        save(run, 5, best=5)
        refusing, error = Refusing(failing, times), None
        with pytest.MonkeyPatch.context() as patch:
            refusing.patch(patch)
            try:
                save(run, 6, best=5, scale=2.0, log=lines.append)
            except TrainingError as raised:
                error = raised
        if error:
            assert times > 1
            assert str(error) == "cannot save the checkpoint at step 6: No space left on device"
            assert (error.run, error.saved_step) == (run, checkpoint_steps(run)[-1])
        for step in checkpoint_steps(run):
            verify(step_folder(run, step))
        assert scale_of(load_checkpoint(run, "best")) == 1
        assert not list((run / "checkpoints").glob(".*")), failing
        if refusing.calls < failing:
            assert (failing > 9, error, lines) == (True, None, [])
            return
        save(run, 7)
        assert load_checkpoint(run, "last").metadata.step == 7
    raise AssertionError("the range is too short")


def test_the_pauses_before_a_retry_grow_and_are_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    pauses: list[float] = []
    lines: list[str] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    Refusing(1, 2).patch(monkeypatch)
    save(tmp_path, 5, log=lines.append)
    assert pauses == [1.0, 4.0]
    assert [line.rpartition("; ")[2] for line in lines] == ["retrying in 1 s", "retrying in 4 s"]


def test_a_checkpoint_that_cannot_be_removed_is_removed_by_the_next_save(tmp_path: Path) -> None:
    lines: list[str] = []
    save(tmp_path, 5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "rename", Refusing(1, 1).wrap(os.rename))
        save(tmp_path, 6, scale=2.0, log=lines.append)
    assert lines == ["cannot remove old checkpoints or write config.yaml: No space left on device"]
    assert checkpoint_steps(tmp_path) == [5, 6]
    save(tmp_path, 7, log=lines.append)
    assert (checkpoint_steps(tmp_path), len(lines)) == ([7], 1)


# --- load during training ----------------------------------------------------------------------------


@pytest.mark.parametrize("pruned", [1, 3])
@pytest.mark.parametrize(
    ("module", "function"), [(checkpoint, "find_checkpoint"), (checkpoint, "read_metadata"), (runs, "checkpoint_steps")]
)
def test_a_checkpoint_that_is_pruned_while_it_is_read_is_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: ModuleType, function: str, pruned: int
) -> None:
    save(tmp_path, 1)
    original, calls = getattr(module, function), 0

    def called(*arguments: Any) -> Any:
        nonlocal calls
        found, calls = original(*arguments), calls + 1
        if calls <= pruned:
            save(tmp_path, calls + 1)
        return found

    monkeypatch.setattr(module, function, called)
    assert load_checkpoint(tmp_path).metadata.step == pruned + 1
