"""Checkpoints: whole or absent, self-explaining, and checked to the last byte."""

import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch
from forgery import forge

import minigpt
from minigpt.config import resolve as configuration
from minigpt.config.schema import RunConfig
from minigpt.errors import CheckpointError, UserError
from minigpt.model import memory as room
from minigpt.model.gpt import GPT
from minigpt.model.load import load_model
from minigpt.storage import checkpoint
from minigpt.storage.checkpoint import load_checkpoint, load_optimizer, repair, save_checkpoint
from minigpt.storage.metadata import (
    FILES,
    FORMAT,
    METADATA,
    CorpusInfo,
    Environment,
    Metadata,
    TrainState,
    read_metadata,
    verify,
)
from minigpt.storage.runs import checkpoint_steps, pointed_step, step_folder
from minigpt.text.tokenizer import make_tokenizer

TOKENIZER = make_tokenizer("char", "abc \n")
CONFIG = configuration.resolve(
    ("test", {"model.n_layer": 1, "model.n_head": 1, "model.n_embd": 8, "model.context": 8, "train.steps": 9})
).config
UNIT = {name: tensor.numpy() for name, tensor in GPT(CONFIG.model, TOKENIZER.vocab_size).state_dict().items()}
ALL = (*FILES, METADATA)


def meta_of(state: TrainState) -> Metadata:
    return Metadata(
        format=FORMAT,
        step=state.step,
        characters_seen=50,
        validation_loss=1.5,
        corpus=CorpusInfo(name="abc", fingerprint="f"),
        vocab_size=TOKENIZER.vocab_size,
        parameters=7,
        runtime=Environment(device="cpu", dtype="float32", compile=False, threads=1),
        state=state,
    )


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "PAUSES", (0.0, 0.0))


def publish(
    run: Path,
    step: int,
    *,
    best: int | None = None,
    keep_last: int = 1,
    scale: float = 1.0,
    best_loss: float | None = 1.25,
    say: Callable[[str], None] = lambda line: None,
) -> Path:
    """Save a checkpoint of `step` whose weights all depend on `scale`."""
    weights = {name: array * np.float32(scale) for name, array in UNIT.items()}
    state = TrainState(step=step, best_step=step if best is None else best, best_loss=best_loss)
    settings = CONFIG.model_copy(update={"train": CONFIG.train.model_copy(update={"keep_last": keep_last})})
    run.mkdir(parents=True, exist_ok=True)
    (run / "config.yaml").write_text(configuration.to_yaml(settings), encoding="utf-8")
    optimizer = {"exp_avg/norm.weight": np.full((8,), scale, np.float32)}
    return save_checkpoint(run, settings, TOKENIZER, meta_of(state), weights, optimizer, say)


def scale_of(loaded: checkpoint.Checkpoint) -> float:
    """By what the weights were scaled that were loaded; fails where they are not all of one checkpoint."""
    found = loaded.weights
    (scale,) = {round((found[name] / one)[one != 0].mean().item(), 3) for name, one in UNIT.items() if one.any()}
    return scale


def listed(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "checkpoints").iterdir())


# --- what is written ---------------------------------------------------------------------------------


def test_a_checkpoint_is_five_files_that_explain_themselves(tmp_path: Path) -> None:
    folder = publish(tmp_path / "r", 5)
    assert folder == tmp_path / "r/checkpoints/step-00000005"
    assert sorted(path.name for path in folder.iterdir()) == sorted(ALL)
    assert listed(tmp_path / "r") == ["best", "last", "step-00000005"]
    assert (tmp_path / "r/checkpoints/last").read_text(encoding="utf-8") == "step-00000005\n"
    meta = json.loads((folder / METADATA).read_text(encoding="utf-8"))
    assert (meta["format"], meta["step"], meta["validation_loss"]) == (1, 5, 1.5)
    assert meta["corpus"] == {"name": "abc", "fingerprint": "f"}
    assert set(meta["sha256"]) == set(ALL)


def test_what_is_loaded_is_what_was_saved_by_name_by_path_and_by_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    publish(Path("runs/r"), 5, best=5, keep_last=2)
    publish(Path("runs/r"), 6, best=5, keep_last=2, scale=2.0)
    cases: list[tuple[str | Path, str | None, int]] = [
        ("last", None, 5), ("r", None, 5), ("r", "best", 5), ("r", "last", 6), ("r", "6", 6),
        (tmp_path / "runs/r", "last", 6), (tmp_path / "runs/r/checkpoints/step-00000006", None, 6),
    ]  # fmt: skip
    for run, which, step in cases:
        loaded = minigpt.load_checkpoint(run, which)
        assert loaded.metadata.state == TrainState(step=step, best_step=5, best_loss=1.25), (run, which)
        assert loaded.config.model == CONFIG.model
        assert loaded.tokenizer.to_json() == TOKENIZER.to_json()
    assert scale_of(loaded) == 2
    assert load_optimizer(loaded)["exp_avg/norm.weight"].tolist() == [2.0] * 8


def test_a_loaded_model_is_laid_out_as_other_programs_expect_it(tmp_path: Path) -> None:
    model = load_model(load_checkpoint(publish(tmp_path / "r", 5)))
    assert all(parameter.is_contiguous() for parameter in model.parameters())
    safetensors.torch.save_file(model.state_dict(), tmp_path / "out.safetensors")


def test_a_copy_of_one_checkpoint_folder_alone_samples(tmp_path: Path) -> None:
    shutil.copytree(publish(tmp_path / "r", 5), tmp_path / "copy")
    shutil.rmtree(tmp_path / "r")
    loaded = load_checkpoint(tmp_path / "copy")
    pieces = minigpt.generate(
        load_model(loaded), loaded.tokenizer, "ab", loaded.config.sample.model_copy(update={"length": 20})
    )
    assert len("".join(piece.text for piece in pieces)) == 20


# --- what is not as it was written -------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return publish(tmp_path_factory.mktemp("run"), 5)


@pytest.mark.parametrize("name", ALL)
def test_any_damage_to_any_file_is_one_line(whole: Path, tmp_path: Path, name: str) -> None:
    """In metadata.json a flipped digit of the best loss was once believed."""
    content = (whole / name).read_bytes()
    middle = content.index(b"1.25") if name == METADATA else len(content) // 2
    damaged = {
        "flipped": content[:middle] + bytes([content[middle] ^ 3]) + content[middle + 1 :],
        "truncated": content[:-20],
        "empty": b"",
        "longer": content[:-1] + b" {}",
        "other bytes": os.urandom(200),
        "swapped": (whole / ALL[ALL.index(name) - 1]).read_bytes(),
        "missing": None,
    }
    for what, replacement in damaged.items():
        folder = tmp_path / what
        shutil.copytree(whole, folder)
        (folder / name).unlink()
        if replacement is not None:
            (folder / name).write_bytes(replacement)
        with pytest.raises(UserError) as error:
            verify(folder)
        assert "\n" not in str(error.value)
        assert name in str(error.value), what
        with pytest.raises(UserError):
            load_checkpoint(folder)
    assert verify(whole).step == 5


def test_a_format_of_the_future_is_refused_by_its_number(tmp_path: Path) -> None:
    later = meta_of(TrainState(step=5)).model_copy(update={"format": 2})
    folder = save_checkpoint(tmp_path, CONFIG, TOKENIZER, later, UNIT, {})
    with pytest.raises(UserError, match="has format 2, this version of minigpt reads 1"):
        verify(folder)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"norm.weight": np.ones((2, 4), np.float32)}, r"norm\.weight has shape \(2, 4\) and needs \(8,\)"),
        ({"norm.weight": None}, r"do not fit its configuration: it has [\d,]+ parameters and needs "),
        ({"more": np.ones(3, np.float32)}, r"do not fit its configuration: it has [\d,]+ parameters and needs "),
        ({"norm.weight": np.ones(8)}, r"norm\.weight does not hold finite float32 numbers"),
        ({"norm.weight": np.full(8, np.nan, np.float32)}, r"norm\.weight does not hold finite float32 numbers"),
    ],
)
def test_weights_that_are_not_those_of_the_configuration_are_one_line(
    tmp_path: Path, change: dict[str, np.ndarray | None], says: str
) -> None:
    """A checkpoint with matching hashes, of a tool that wrote other weights than its configuration says."""
    weights = {**UNIT, **change}
    kept = {name: tensor for name, tensor in weights.items() if tensor is not None}
    folder = save_checkpoint(tmp_path, CONFIG, TOKENIZER, meta_of(TrainState(step=5)), kept, {})
    with pytest.raises(UserError, match=says) as error:
        load_model(load_checkpoint(folder))
    assert "\n" not in str(error.value)


def test_one_is_told_which_other_checkpoints_are_intact(tmp_path: Path) -> None:
    """And only of those: each is checked before it is named."""
    for step in (5, 6, 7, 8):
        publish(tmp_path, step, best=8, keep_last=9)
    damaged = [step_folder(tmp_path, step) / "model.safetensors" for step in (8, 6, 5, 7)]
    for path, advice in zip(
        damaged,
        [
            "--checkpoint 5 or 6 or 7",
            "--checkpoint 5 or 7",
            "--checkpoint 7",
            "no other checkpoint of the run is intact",
        ],
        strict=True,
    ):
        path.write_bytes(path.read_bytes()[:-1])
        with pytest.raises(UserError, match=r"changed since it was written; ") as error:
            load_checkpoint(tmp_path)
        assert str(error.value).endswith(advice), error.value
    shutil.copytree(step_folder(tmp_path, 8), tmp_path / "copy")
    with pytest.raises(UserError, match=r"changed since it was written$"):
        load_checkpoint(tmp_path / "copy")


def test_a_model_too_large_for_memory_is_not_told_to_try_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others of its run are as large."""
    for step in (5, 6):
        publish(tmp_path, step, best=6, keep_last=9)
    monkeypatch.setattr(room, "free_memory_bytes", lambda device: 1000)
    with pytest.raises(UserError, match=r"needs 0\.0 GB to load, 0\.0 GB are free$"):
        load_checkpoint(tmp_path)


# --- interrupted -------------------------------------------------------------------------------------


def count_syncs(run: Path) -> int:
    calls = 0

    def counted(descriptor: int) -> None:
        nonlocal calls
        calls += 1

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", counted)
        publish(run, 5)
    return calls


def test_a_save_that_fails_anywhere_leaves_the_checkpoint_before_it(tmp_path: Path) -> None:
    """A disk that fills up at any of the places where a save waits for it."""
    places = count_syncs(tmp_path / "counted")
    assert places > 5
    for failing in range(places):
        run = tmp_path / str(failing)
        publish(run, 5, best=5)
        calls = 0

        def full(descriptor: int, failing: int = failing) -> None:
            nonlocal calls
            calls += 1
            if calls > failing:
                raise OSError(28, "No space left on device")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "fsync", full)
            with pytest.raises(UserError, match="cannot save the checkpoint of step 6: No space left on device"):
                publish(run, 6, best=5, scale=2.0)
        assert not any("saving" in name for name in listed(run)), failing
        for step in checkpoint_steps(run):
            verify(step_folder(run, step))
        assert load_checkpoint(run, "best").metadata.step == 5
        publish(run, 7)
        assert load_checkpoint(run, "last").metadata.step == 7


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such limit")
def test_a_disk_that_refuses_to_write_the_tensors_is_one_line(tmp_path: Path) -> None:
    """safetensors raises an error of its own for a full disk, which was once not caught."""
    script = """
import resource, signal, sys
sys.path[:0] = sys.argv[1], sys.argv[1] + "/../../support"
from pathlib import Path
from test_checkpoint import publish
from minigpt.storage import checkpoint
from minigpt.errors import CheckpointError, UserError
checkpoint.PAUSES = (0.0, 0.0)
run = Path(sys.argv[2])
publish(run, 5)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
try:
    publish(run, 6)
except UserError as error:
    print(error)
"""
    command = [sys.executable, "-c", script, str(Path(__file__).parent), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("cannot save the checkpoint of step 6: "), done.stdout
    assert f"the checkpoint of step 5 is intact, go on from it: minigpt train --resume {tmp_path}" in done.stdout
    assert done.stdout.count("\n") == 1
    assert listed(tmp_path) == ["best", "last", "step-00000005"]
    assert load_checkpoint(tmp_path).metadata.step == 5


def test_what_was_never_measured_is_not_the_best(tmp_path: Path) -> None:
    """Stopped before the first step and again before the first evaluation: `best` named the untrained model."""
    publish(tmp_path, 0, best_loss=None, keep_last=2)
    publish(tmp_path, 4, best=0, best_loss=None, keep_last=2)
    assert checkpoint_steps(tmp_path) == [0, 4]
    assert pointed_step(tmp_path, "best") == 4
    assert load_checkpoint(tmp_path).metadata.step == load_checkpoint(tmp_path, 4).metadata.step == 4
    publish(tmp_path, 8, best=0, best_loss=None)
    assert checkpoint_steps(tmp_path) == [8], "and is not kept as if it were"


class Killed(BaseException):
    """Ends a save without any of its own cleaning up, like SIGKILL."""


def kill_at(function: str, call: int) -> Any:
    """Replace a function of `os` by one that is killed before its call number `call`."""
    original, calls = getattr(os, function), 0

    def killed(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > call:
            raise Killed
        return original(*arguments, **named)

    return killed


@pytest.mark.parametrize("function", ["fsync", "rename", "replace", "rmdir"])
def test_a_save_that_is_killed_anywhere_is_put_right_at_the_next_start(tmp_path: Path, function: str) -> None:
    """Killed before it moved the pointers, it left them behind for ever; killed while it pruned, half a folder."""
    for call in range(40):
        run = tmp_path / str(call)
        publish(run, 4, best=4)
        publish(run, 5, best=4)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "getpid", lambda: 1)
            patch.setattr(os, function, kill_at(function, call))
            try:
                publish(run, 6, best=6)
                finished = True
            except Killed:
                finished = False
        newest = checkpoint_steps(run)[-1]
        assert newest in (5, 6)
        for which in ("best", "last"):
            assert load_checkpoint(run, which).metadata.step in (4, 5, 6)
        repair(run, read_metadata(step_folder(run, newest)).state)
        steps = checkpoint_steps(run)
        assert listed(run) == ["best", "last", *(step_folder(run, step).name for step in steps)]
        assert (pointed_step(run, "last"), pointed_step(run, "best")) == ((6, 6) if newest == 6 else (5, 4))
        for step in steps:
            verify(step_folder(run, step))
        if finished:
            return
    raise AssertionError("a save was never finished; the range is too short")


def test_what_is_later_than_the_step_gone_on_from_is_set_aside_and_kept(tmp_path: Path) -> None:
    """The run could not go on from it, but it may be all that is left of hours of training."""
    for step in (4, 5, 6):
        publish(tmp_path, step, best=6, keep_last=3, scale=step)
    (tmp_path / ".config.yaml.77").touch()
    (tmp_path / "checkpoints/.last.77").touch()
    state = read_metadata(step_folder(tmp_path, 4)).state
    assert repair(tmp_path, state) == ["quarantined-step-00000005", "quarantined-step-00000006"]
    assert listed(tmp_path) == [
        "quarantined-step-00000005",
        "quarantined-step-00000006",
        "best",
        "last",
        "step-00000004",
    ]
    assert (pointed_step(tmp_path, "last"), pointed_step(tmp_path, "best")) == (4, 4)
    assert not (tmp_path / ".config.yaml.77").exists()
    assert repair(tmp_path, state) == []
    for step in (5, 6, 7, 8):
        publish(tmp_path, step)
    assert listed(tmp_path) == [
        "quarantined-step-00000005",
        "quarantined-step-00000006",
        "best",
        "last",
        "step-00000008",
    ]
    (tmp_path / "checkpoints/quarantined-step-00000006").rename(step_folder(tmp_path, 6))
    assert scale_of(load_checkpoint(tmp_path, "6")) == 6


def test_what_was_set_aside_is_never_written_over(tmp_path: Path) -> None:
    """A run may fall back twice, to the same step or an earlier one."""
    for scale, kept in enumerate(
        ["quarantined-step-00000005", "quarantined-step-00000005-2", "quarantined-step-00000005-3"]
    ):
        for step in (4, 5):
            publish(tmp_path, step, best=4, keep_last=3, scale=scale)
        assert repair(tmp_path, read_metadata(step_folder(tmp_path, 4)).state) == [kept]
    for scale, kept in enumerate(
        ["quarantined-step-00000005", "quarantined-step-00000005-2", "quarantined-step-00000005-3"]
    ):
        (tmp_path / "checkpoints" / kept).rename(step_folder(tmp_path, 5))
        assert scale_of(load_checkpoint(tmp_path, "5")) == scale
        (step_folder(tmp_path, 5)).rename(tmp_path / "checkpoints" / kept)


def test_repair_of_a_run_without_checkpoints_makes_nothing(tmp_path: Path) -> None:
    repair(tmp_path, TrainState())
    assert list(tmp_path.iterdir()) == []


# --- refused for a while -----------------------------------------------------------------------------


class Refusing:
    """The system calls of a save: those from number `first` on fail, `times` times, then all goes well again."""

    def __init__(self, first: int, times: int) -> None:
        self.calls, self.first, self.times = 0, first, times

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any, **named: Any) -> Any:
            self.calls += 1
            if self.first <= self.calls < self.first + self.times:
                raise OSError(5, "Input/output error")
            return function(*arguments, **named)

        return called

    def patch(self, patch: pytest.MonkeyPatch) -> None:
        for name in ("fsync", "rename", "replace"):
            patch.setattr(os, name, self.wrap(getattr(os, name)))
        patch.setattr(safetensors.numpy, "save_file", self.wrap(safetensors.numpy.save_file))


def test_a_save_that_fails_once_anywhere_succeeds_at_the_second_try(tmp_path: Path) -> None:
    """Each call that reaches the disk fails in its turn; what is saved is what would have been."""
    for failing in range(1, 100):
        run, said = tmp_path / str(failing), list[str]()
        publish(run, 5, best=5)
        refusing = Refusing(failing, 1)
        with pytest.MonkeyPatch.context() as patch:
            refusing.patch(patch)
            publish(run, 6, best=5, scale=2.0, say=said.append)
        for which, scale in (("last", 2), ("best", 1)):
            assert scale_of(load_checkpoint(run, which)) == scale
        assert listed(run) == ["best", "last", "step-00000005", "step-00000006"]
        if refusing.calls < failing:
            assert failing > 12, "a save waits for the disk in more places than this"
            assert said == []
            return
        (line,) = said
        assert re.fullmatch(r"cannot (save the .* 6|remove older .*): Input/output error(; trying again in 0 s)?", line)
    raise AssertionError("the range is too short")


@pytest.mark.parametrize("times", [2, 3])
def test_three_tries_are_made_and_then_the_save_before_stays(tmp_path: Path, times: int) -> None:
    said: list[str] = []
    publish(tmp_path, 5, scale=3.0)
    with pytest.MonkeyPatch.context() as patch:
        Refusing(1, times).patch(patch)
        if times == 2:
            publish(tmp_path, 6, say=said.append)
        else:
            with pytest.raises(
                UserError, match="cannot save the checkpoint of step 6: Input/output error; the checkpoint of step 5 is"
            ):
                publish(tmp_path, 6, say=said.append)
    assert said == ["cannot save the checkpoint of step 6: Input/output error; trying again in 0 s"] * 2
    assert listed(tmp_path) == ["best", "last", f"step-0000000{6 if times == 2 else 5}"]
    assert scale_of(load_checkpoint(tmp_path)) == (1 if times == 2 else 3)


def test_the_pauses_grow_and_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    slept: list[float] = []
    said: list[str] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    Refusing(1, 2).patch(monkeypatch)
    publish(tmp_path, 5, say=said.append)
    assert slept == [1.0, 4.0]
    assert [line[-19:] for line in said] == ["trying again in 1 s", "trying again in 4 s"]


def test_what_cannot_be_pruned_is_told_and_goes_with_the_next_save(tmp_path: Path) -> None:
    said: list[str] = []
    publish(tmp_path, 5)
    rename = os.rename

    def refused(source: Any, target: Any) -> None:
        if ".old-" in str(target):
            raise OSError(13, "Permission denied")
        rename(source, target)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "rename", refused)
        publish(tmp_path, 6, scale=2.0, say=said.append)
    assert said == ["cannot remove older checkpoints: Permission denied"]
    assert checkpoint_steps(tmp_path) == [5, 6]
    assert scale_of(load_checkpoint(tmp_path, "last")) == 2
    publish(tmp_path, 7, say=said.append)
    assert checkpoint_steps(tmp_path) == [7]
    assert len(said) == 1


# --- at the same time --------------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["best", "last"])
def test_loading_while_training_saves_and_prunes_always_gives_a_whole_checkpoint(tmp_path: Path, which: str) -> None:
    """A checkpoint was once found, pruned, and then missing under the reader's feet."""
    publish(tmp_path, 1)
    stop = threading.Event()
    errors: list[BaseException] = []

    def train() -> None:
        try:
            step = 1
            while not stop.wait(0.05):
                step += 1
                publish(tmp_path, step, scale=step)
        except BaseException as error:
            errors.append(error)

    writer = threading.Thread(target=train)
    writer.start()
    seen: list[int] = []
    try:
        until = time.monotonic() + 30
        while len(set(seen)) < 12 and time.monotonic() < until and not errors:
            loaded = load_checkpoint(tmp_path, which)
            assert scale_of(loaded) == pytest.approx(loaded.metadata.step, rel=1e-3)
            assert loaded.path.name == step_folder(tmp_path, loaded.metadata.step).name
            seen.append(loaded.metadata.step)
    finally:
        stop.set()
        writer.join()
    assert errors == []
    assert seen == sorted(seen)
    assert len(set(seen)) == 12


def test_a_run_whose_checkpoints_are_all_pruned_while_they_are_listed_still_has_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(tmp_path, 1)
    listed, times = Path.glob, 0

    def glob(folder: Path, pattern: str) -> list[Path]:
        nonlocal times
        found, times = list(listed(folder, pattern)), times + 1
        if times <= 3:
            monkeypatch.setattr(Path, "glob", listed)
            publish(tmp_path, 1 + times)
            monkeypatch.setattr(Path, "glob", glob)
        return found

    monkeypatch.setattr(Path, "glob", glob)
    assert checkpoint_steps(tmp_path) == [4]
    assert times == 4
    monkeypatch.setattr(Path, "glob", listed)
    (step_folder(tmp_path, 4) / METADATA).unlink()
    assert checkpoint_steps(tmp_path) == []


def test_a_checkpoint_that_is_pruned_before_it_is_looked_at_is_looked_for_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(tmp_path, 1)
    find, looks = checkpoint.find_checkpoint, 0

    def found(*arguments: Any) -> Path:
        nonlocal looks
        path, looks = find(*arguments), looks + 1
        if looks == 1:
            publish(tmp_path, 2)
        return path

    monkeypatch.setattr(checkpoint, "find_checkpoint", found)
    assert load_checkpoint(tmp_path).metadata.step == 2


@pytest.mark.parametrize("pruned", [1, 3, 99])
def test_a_checkpoint_that_is_pruned_while_it_is_read_is_looked_for_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pruned: int
) -> None:
    """Where it goes on for ever, one line comes all the same."""
    looks = 0
    publish(tmp_path, 1)

    def read(path: Path) -> Any:
        nonlocal looks
        meta = read_metadata(path)
        if (looks := looks + 1) <= pruned:
            publish(tmp_path, meta.step + 1)
        return meta

    monkeypatch.setattr(checkpoint, "read_metadata", read)
    if pruned < 99:
        assert load_checkpoint(tmp_path).metadata.step == pruned + 1
        return
    with pytest.raises(UserError, match=r"missing|cannot be read"):
        load_checkpoint(tmp_path)
    assert looks == checkpoint.LOOKS


# --- what is kept ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("keep_last", "kept"), [(1, [2, 9]), (3, [2, 7, 8, 9]), (20, [1, 2, 3, 4, 5, 6, 7, 8, 9])])
def test_the_newest_and_the_best_are_kept(tmp_path: Path, keep_last: int, kept: list[int]) -> None:
    for step in range(1, 10):
        publish(tmp_path, step, best=min(step, 2), keep_last=keep_last)
    assert checkpoint_steps(tmp_path) == kept
    assert (pointed_step(tmp_path, "last"), pointed_step(tmp_path, "best")) == (9, 2)


def test_saving_a_step_again_replaces_it(tmp_path: Path) -> None:
    publish(tmp_path, 5)
    first = load_model(load_checkpoint(tmp_path)).token_embedding.weight.detach()
    publish(tmp_path, 5, scale=3.0)
    assert torch.equal(load_model(load_checkpoint(tmp_path)).token_embedding.weight, 3 * first)
    assert listed(tmp_path) == ["best", "last", "step-00000005"]


def test_a_checkpoint_stores_the_configuration_it_was_given(tmp_path: Path) -> None:
    folder = publish(tmp_path, 5, keep_last=4)
    stored: RunConfig = load_checkpoint(folder).config
    assert stored == CONFIG.model_copy(update={"train": CONFIG.train.model_copy(update={"keep_last": 4})})


def test_no_tensor_is_read_from_a_pickle(tmp_path: Path, whole: Path) -> None:
    shutil.copytree(whole, tmp_path / "copy")
    loaded = load_checkpoint(whole)
    for name in ("optimizer.safetensors", "model.safetensors"):
        torch.save({"a": torch.ones(1)}, tmp_path / "copy" / name)
        forge(tmp_path / "copy")
        with pytest.raises(CheckpointError, match="is not a valid safetensors file"):
            load_optimizer(load_checkpoint(tmp_path / "copy"))
    assert load_optimizer(loaded)
