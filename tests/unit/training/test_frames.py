"""Frames: the weights that a run keeps on its way, to look at later."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forgery import forge
from safetensors.numpy import load, save
from small_runs import make_config, make_data, stop_at

import minigpt.storage.checkpoint as storage
from minigpt.cli.replay import replay
from minigpt.cli.verify import verify_runs
from minigpt.errors import CheckpointError, UserError
from minigpt.paths import FRAMES
from minigpt.storage.checkpoint import load_checkpoint, read_checkpoint
from minigpt.storage.metadata import METADATA, MODEL
from minigpt.storage.runs import checkpoint_steps, saved_steps, step_folder
from minigpt.training import schedule
from minigpt.training.loop import train
from minigpt.training.schedule import frame_steps

pytestmark = pytest.mark.usefixtures("torch_settings")
KEPT = [0, 2, 4, 8]
"""12 steps times (i / 5) squared, rounded. The last step is a checkpoint."""


@pytest.fixture(autouse=True)
def slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let these runs seem so long that the limit on the time of frames does not apply."""
    monkeypatch.setattr(schedule, "FRAME_FLOPS", 1)


def weights(run: Path, step: int, kind: str = FRAMES) -> bytes:
    return (step_folder(run, step, kind) / MODEL).read_bytes()


def go(run: Path, *, resume: bool = False, stop: int = -1, **changes: Any) -> Path:
    run.mkdir(exist_ok=True)
    last = load_checkpoint(step_folder(run, checkpoint_steps(run)[-1])) if resume else None
    config = make_config(**{"train__frames": 6, **changes})
    train(config, run, make_data(), resume=last, probes=(stop_at(stop),))
    return run


def test_frames_are_the_weights_of_their_steps_and_change_nothing(tmp_path: Path) -> None:
    run = go(tmp_path / "a", train__save_every=1, train__keep_last=20)
    assert checkpoint_steps(run, FRAMES) == KEPT
    for step in KEPT:
        frame, saved = (read_checkpoint(step_folder(run, step, kind)).weights for kind in (FRAMES, "checkpoints"))
        assert all(np.array_equal(frame[name], saved[name].astype(np.float16).astype(np.float32)) for name in saved)
    without = go(tmp_path / "b", train__frames=0)
    assert checkpoint_steps(without, FRAMES) == []
    assert weights(without, 12, "checkpoints") == weights(run, 12, "checkpoints")
    assert [*saved_steps(without)] == checkpoint_steps(without)


def test_a_resumed_run_has_the_same_frames(tmp_path: Path) -> None:
    whole, run = go(tmp_path / "whole"), tmp_path / "run"
    go(run, stop=4)
    assert checkpoint_steps(run, FRAMES) == KEPT[:3]
    go(run, stop=8, resume=True)
    shutil.rmtree(step_folder(run, 8))  # the run goes back to step 5: it makes the frame of step 8 again
    (step_folder(run, 8, FRAMES) / MODEL).write_bytes(b"another future")
    go(run, resume=True)
    assert checkpoint_steps(run, FRAMES) == KEPT
    assert all(weights(run, step) == weights(whole, step) for step in KEPT)


def test_a_resume_removes_the_frames_of_steps_that_it_trains_again(tmp_path: Path) -> None:
    run = go(tmp_path / "run", stop=8)
    shutil.rmtree(step_folder(run, 8))
    go(run, resume=True, train__frames=0)
    assert checkpoint_steps(run, FRAMES) == KEPT[:3]


def test_a_frame_is_read_like_a_checkpoint_but_never_resumed(tmp_path: Path) -> None:
    run = go(tmp_path / "run")
    assert load_checkpoint(run, 2).metadata.step == 2
    assert load_checkpoint(run, 2).run_name == "run"
    assert load_checkpoint(run, 12).path.parent.name == "checkpoints"
    with pytest.raises(CheckpointError, match=r"no checkpoint 3; use 0, 2, 4, 8, 10, 12, best or last"):
        load_checkpoint(run, 3)
    with pytest.raises(CheckpointError, match="optimizer state is missing"):
        train(make_config(), run, make_data(), resume=load_checkpoint(run, 2))


def test_a_damaged_frame_is_found(tmp_path: Path) -> None:
    run = go(tmp_path / "run")
    assert not [checked for checked in verify_runs([run]) if checked["problem"]]
    path = step_folder(run, 2, FRAMES) / MODEL
    path.write_bytes(path.read_bytes()[:-1] + b"\0")
    damaged = [checked for checked in verify_runs([run]) if checked["problem"]]
    assert [checked["name"] for checked in damaged] == ["frames/step-00000002"]
    with pytest.raises(UserError, match=r"model\.safetensors has changed"):
        load_checkpoint(run, 2)


def test_replay_compares_frames(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, data = go(tmp_path / "run"), make_data()
    monkeypatch.setattr("minigpt.cli.replay.run_dataset", lambda *_: data)
    assert replay(load_checkpoint(run, "last")) == []
    frame = step_folder(run, 2, FRAMES)
    arrays = load((frame / MODEL).read_bytes())
    forge(frame, {MODEL: save({**arrays, "norm.weight": -arrays["norm.weight"]})})
    assert replay(load_checkpoint(run, "last")) == ["norm.weight at step 2"]
    for changed in ({"model__n_layer": 3}, {"model__family": "gru"}):
        other = go(tmp_path / "other", **changed)
        shutil.rmtree(frame)
        shutil.copytree(step_folder(other, 2, FRAMES), frame)
        shutil.rmtree(other)
        with pytest.raises(CheckpointError, match=f"is not of this run: {next(iter(changed)).replace('__', '.')}"):
            replay(load_checkpoint(run, "last"))
    (frame / METADATA).unlink()
    with pytest.raises(UserError, match=r"cannot read .*step-00000002"):
        replay(load_checkpoint(run, "last"))


def test_a_run_goes_on_without_a_frame_that_cannot_be_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    publish = storage.publish

    def full(path: Path) -> Any:
        if path.parent.name == FRAMES:
            raise OSError(28, "No space left on device")
        return publish(path)

    monkeypatch.setattr(storage, "publish", full)
    run = go(tmp_path / "run")
    assert checkpoint_steps(run)[-1] == 12
    assert "cannot save the frame at step 2: No space left on device" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("steps", "parameters", "frames", "expected"),
    [
        (1000, 600_000, 12, [0, 8, 33, 74, 132, 207, 298, 405, 529, 669, 826]),
        (1000, 600_000, 1, []),
        (1000, 600_000, 0, []),
        (1000, 20_000_000, 12, [0]),  # 40 MB each
        (1000, 40_000_000, 12, []),
        (40, 600_000, 12, [0, 4, 18]),  # a run of seconds
        (5, 1000, 12, []),
    ],
)
def test_frames_are_dense_where_much_is_learned(
    monkeypatch: pytest.MonkeyPatch, steps: int, parameters: int, frames: int, expected: list[int]
) -> None:
    monkeypatch.undo()
    config = make_config(train__frames=frames, model__context=128, train__batch_size=32)
    assert sorted(frame_steps(config, steps, parameters, 6 * parameters)) == expected
