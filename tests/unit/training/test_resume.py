"""Exact resume: a run stopped anywhere and resumed ends in the same bits as a run that never stopped."""

import random
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from small_runs import ending, make_config, make_data, stop_at

import minigpt.storage.checkpoint as storage
import minigpt.training.learner as learner
from minigpt.config.schema import RunConfig
from minigpt.errors import TrainingError
from minigpt.model.device import Runtime, has_compiler
from minigpt.storage.checkpoint import load_checkpoint
from minigpt.storage.metadata import Environment
from minigpt.storage.runs import checkpoint_steps, lock, step_folder
from minigpt.training.loop import Probe, train

CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "muon": {"model__dropout": 0.1, "train__micro_batch_size": 2},
    "adamw": {"optim__name": "adamw", "model__family": "classic", "model__dropout": 0.2},
    "wsd": {"optim__name": "adamw", "train__micro_batch_size": 1, "optim__schedule": "wsd"},
    "lstm": {"model__family": "lstm", "model__dropout": 0.2, "train__micro_batch_size": 2},
    "rnn": {"model__family": "rnn", "optim__name": "adamw"},
    "all": {"model__dropout": 0.2, "train__micro_batch_size": 2, "optim__grad_clip": 0.3},
}
STEPS = 12

pytestmark = pytest.mark.usefixtures("torch_settings")


def go_on(config: RunConfig, run: Path, stop: int | None = None, probes: tuple[Probe, ...] = ()) -> int | None:
    """Start or resume `run`, and send a signal in the middle of step `stop`. Return the signal."""
    run.mkdir(exist_ok=True)
    steps = checkpoint_steps(run)
    batch_at = learner.batch_at

    def interrupted(tokens: Any, context: int, batch_size: int, seed: int, step: int, **part: slice) -> Any:
        if seed == config.train.seed and step + 1 == stop:
            signal.raise_signal(random.Random(stop).choice((signal.SIGINT, signal.SIGTERM)))
        return batch_at(tokens, context, batch_size, seed, step, **part)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(learner, "batch_at", interrupted)
        resume = load_checkpoint(step_folder(run, steps[-1])) if steps else None
        return train(config, run, make_data(), resume=resume, probes=probes).signal


def train_and_copy(config: RunConfig, run: Path, copy: Path, step: int) -> None:
    """Train in `run`, and copy it to `copy` as a kill after `step` would leave it."""
    run.mkdir()
    batch_at = learner.batch_at

    def copying(*arguments: Any, **named: Any) -> Any:
        if arguments[3:] == (config.train.seed, step):
            shutil.copytree(run, copy)
        return batch_at(*arguments, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(learner, "batch_at", copying)
        train(config, run, make_data())


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_stopped_at_random_steps_and_resumed_ends_in_the_same_bits(tmp_path: Path, name: str) -> None:
    """Six stops for each configuration: one at each of two random steps, and four in a row in one run."""
    config = make_config(**CONFIGURATIONS[name])
    draws = random.Random(f"stops of {name}")
    go_on(config, tmp_path / "untouched")
    expected = ending(tmp_path / "untouched")
    # Evaluations are at 4, 8 and 12, log lines at 3, 6, 9 and 12, checkpoints at 5, 10 and the best.
    for i, stops in enumerate(
        [*([stop] for stop in draws.sample(range(1, STEPS), 2)), draws.sample(range(1, STEPS), 4)]
    ):
        run = tmp_path / f"stopped-{i}"
        for stop in sorted(stops):
            assert go_on(config, run, stop) is not None
            assert checkpoint_steps(run)[-1] == stop
        assert go_on(config, run) is None
        found = ending(run)
        assert {key for key in expected if found[key] != expected[key]} == set(), f"stopped at {stops}"


@pytest.mark.parametrize("step", [0, 4])
def test_stopped_within_an_evaluation(tmp_path: Path, step: int) -> None:
    config = make_config(**CONFIGURATIONS["all"])
    go_on(config, tmp_path / "untouched")
    assert go_on(config, tmp_path / "stopped", probes=(stop_at(step),)) == signal.SIGINT
    assert checkpoint_steps(tmp_path / "stopped")[-1] == step
    go_on(config, tmp_path / "stopped")
    assert ending(tmp_path / "stopped") == ending(tmp_path / "untouched")


@pytest.mark.parametrize(("step", "saved"), [(0, [0]), (7, [0, 5])])
def test_killed_and_resumed_from_the_last_checkpoint(tmp_path: Path, step: int, saved: list[int]) -> None:
    """A new run saves a checkpoint before its first step."""
    config = make_config(**CONFIGURATIONS["all"], train__eval_every=20)
    train_and_copy(config, tmp_path / "untouched", tmp_path / "killed", step)
    assert checkpoint_steps(tmp_path / "killed") == saved
    curves = tmp_path / "killed/metrics.jsonl"
    assert f'"step": {max(0, step - 1)}' in curves.read_text(encoding="utf-8")
    with open(curves, "a", encoding="utf-8") as file:
        file.write(f'{{"step": {step}, "ti')
    go_on(config, tmp_path / "killed")
    assert ending(tmp_path / "killed") == ending(tmp_path / "untouched")


@pytest.mark.parametrize("what", ["moved", "removed", "without its parent"])
def test_a_run_whose_folder_is_moved_or_removed_ends_without_a_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Resumed in its new folder, it ends in the same bits."""
    monkeypatch.setattr(storage, "RETRY_PAUSES", ())
    config = make_config(**CONFIGURATIONS["all"], train__keep_last=9)
    go_on(config, tmp_path / "untouched")
    run, elsewhere = tmp_path / "runs/a", tmp_path / "elsewhere"
    run.mkdir(parents=True)

    def disturb(step: int, *_: Any) -> None:
        if step == 8 and what == "moved":
            run.rename(elsewhere)
        elif step == 8:
            shutil.rmtree(run.parent if what == "without its parent" else run)

    with lock(run), pytest.raises(TrainingError) as error:
        train(config, run, make_data(), probes=(disturb,))
    assert str(error.value).startswith("cannot save the checkpoint at step 8: ")
    assert str(error.value).endswith("No such file or directory")
    assert error.value.saved_step is None
    assert not run.exists(), "nothing is written at the old path"
    if what == "moved":
        assert checkpoint_steps(elsewhere) == [0, 4, 5]
        go_on(config, elsewhere)
        found, expected = ending(elsewhere), ending(tmp_path / "untouched")
        assert {key for key in expected if found[key] != expected[key]} == set()


# --- drift -------------------------------------------------------------------------------------------

DRIFT = "from this step on, results may differ in the last digits: "
MASKS = DRIFT.replace("digits", "digits and in dropout masks")


def resumed(run: Path, capsys: pytest.CaptureFixture[str], **changes: Any) -> str | None:
    """Stop a run at step 5, resume it with `changes`, and return the message about them."""
    go_on(make_config(**CONFIGURATIONS["muon"]), run, 5)
    assert "may differ" not in capsys.readouterr().err
    assert go_on(make_config(**{**CONFIGURATIONS["muon"], **changes}), run) is None
    assert checkpoint_steps(run)[-1] == STEPS
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "may differ" in line] or [""]
    assert line.startswith(MASKS) or not line
    return line.removeprefix(MASKS) or None


def test_without_a_change_nothing_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert resumed(tmp_path / "run", capsys) is None
    more = {"train__eval_every": 3, "train__log_every": 2, "train__keep_last": 3}
    assert resumed(tmp_path / "other", capsys, **more) is None


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"train__micro_batch_size": 1}, "micro-batches of 1 instead of 2"),
        ({"train__micro_batch_size": None}, "micro-batches of 4 instead of 2"),
        ({"runtime__threads": 2}, "threads 2 instead of 1"),
        ({"runtime__dtype": "bfloat16"}, "dtype bfloat16 instead of float32"),
        (
            {"runtime__threads": 2, "train__micro_batch_size": 4},
            "threads 2 instead of 1, micro-batches of 4 instead of 2",
        ),
    ],
)
def test_what_changes_the_last_bits_is_allowed_and_reported_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], says: str
) -> None:
    assert resumed(tmp_path / "run", capsys, **changes) == says


@pytest.mark.parametrize("fact", ["torch", "processor"])
def test_another_machine_or_version_is_reported_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, fact: str
) -> None:
    environment, drifted = Runtime.environment, False
    before = getattr(Runtime("cpu", "float32", False, 1).environment(), fact)
    assert before, "an unknown fact cannot be compared"

    def of_another(self: Runtime) -> Environment:
        return environment(self).model_copy(update={fact: "another"} if drifted else {})

    monkeypatch.setattr(Runtime, "environment", of_another)
    go_on(make_config(), tmp_path / "run", 5)
    drifted = True
    go_on(make_config(), tmp_path / "run", 7)
    (line,) = [line for line in capsys.readouterr().err.splitlines() if DRIFT in line]
    assert line == f"{DRIFT}{fact} another instead of {before}"
    go_on(make_config(), tmp_path / "run")
    assert DRIFT not in capsys.readouterr().err, "the second resume has the same environment"


def test_other_intervals_after_a_resume_change_no_weight(tmp_path: Path) -> None:
    changes = CONFIGURATIONS["all"]
    go_on(make_config(**changes), tmp_path / "untouched")
    go_on(make_config(**changes), tmp_path / "stopped", 7)
    more = {"train__eval_every": 1, "train__log_every": 2, "train__save_every": 2, "train__keep_last": 3}
    go_on(make_config(**changes, **more), tmp_path / "stopped")
    expected, found = ending(tmp_path / "untouched"), ending(tmp_path / "stopped")
    assert (found["model"], found["optimizer"]) == (expected["model"], expected["optimizer"])


@pytest.mark.slow
@pytest.mark.skipif(not has_compiler(), reason="needs a C++ compiler")
def test_compiled_as_well(tmp_path: Path) -> None:
    """By default, compiled kernels add the sums of threads in any order. minigpt makes them deterministic."""
    small = {"model__n_layer": 1, "train__steps": 6, "train__save_every": 3, "model__dropout": 0.2}
    config = make_config(**small, runtime__threads=2, runtime__compile=True)
    train_and_copy(config, tmp_path / "untouched", tmp_path / "killed", step=3)
    assert checkpoint_steps(tmp_path / "killed") == [0, 3]
    go_on(config, tmp_path / "killed")
    assert ending(tmp_path / "killed") == ending(tmp_path / "untouched")
    assert ending(tmp_path / "killed")["runtime"].compile is True
