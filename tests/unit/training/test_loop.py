"""The loop: when a run logs, evaluates, saves and stops, and what it says when it cannot continue."""

import errno
import itertools
import json
import math
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from small_runs import disturb, make_config, make_data, same, tensors

import minigpt.storage.checkpoint as storage
import minigpt.training.learner as learner
import minigpt.training.loop as loop
import minigpt.training.schedule as schedule
from minigpt.cli.report import is_overfitting
from minigpt.errors import InsufficientMemoryError, RunFinishedError, TrainingError
from minigpt.model.gpt import GPT
from minigpt.storage.checkpoint import load_checkpoint
from minigpt.storage.metadata import TrainState, read_metadata
from minigpt.storage.runs import best_step, checkpoint_steps, step_folder
from minigpt.training.evaluate import EvalResult
from minigpt.training.learner import make_learner
from minigpt.training.loop import Outcome, Probe, Training, train
from minigpt.training.metrics import Metrics
from minigpt.training.schedule import lr_factor

pytestmark = pytest.mark.usefixtures("torch_settings")


def curve(run: Path, tag: str, split: str = "train") -> dict[int, float]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return {line["step"]: line[tag] for line in lines if line["split"] == split}


@pytest.fixture
def go(tmp_path: Path) -> Callable[..., tuple[Path, Outcome]]:
    """Train in a folder called `name`. The arguments are settings, or arguments of `train`."""

    def start(name: str = "run", *, resume: bool = False, probes: tuple[Probe, ...] = (), **changes: Any) -> Any:
        run = tmp_path / name
        run.mkdir(exist_ok=True)
        checkpoint = load_checkpoint(step_folder(run, checkpoint_steps(run)[-1])) if resume else None
        return run, train(make_config(**changes), run, make_data(), resume=checkpoint, probes=probes)

    return start


def script_losses(monkeypatch: pytest.MonkeyPatch, losses: list[float]) -> None:
    """Let the next evaluations measure these losses."""
    coming = iter(losses)
    monkeypatch.setattr(loop, "evaluate", lambda *_, **__: EvalResult(next(coming), 1.0, 1.0, 1))


# --- what is logged ----------------------------------------------------------------------------------


def test_the_training_loss_is_the_mean_over_all_steps_since_the_last_line(go: Any) -> None:
    each, _ = go("each", train__log_every=1, train__micro_batch_size=2)
    thirds, _ = go("thirds", train__log_every=3, train__micro_batch_size=2)
    losses = curve(each, "loss")
    means = {step: sum(losses[step - i] for i in range(3)) / 3 for step in (3, 6, 9, 12)}
    assert curve(thirds, "loss") == pytest.approx(means, rel=1e-12)


def test_times_start_at_zero_and_never_decrease(go: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first evaluation does not count."""
    monkeypatch.setattr(schedule, "time", SimpleNamespace(perf_counter=itertools.count().__next__))
    run, _ = go(train__log_every=1, probes=(lambda *_: [schedule.time.perf_counter() for _ in range(100)],))
    times = [json.loads(line)["time"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert len(times) > 12
    assert times == sorted(times)
    assert times[0] < 100


def test_the_logged_rates_follow_the_schedule_to_its_end(go: Any) -> None:
    run, _ = go(train__log_every=1, optim__warmup=0.25, optim__min_lr=0.0)
    rates, rest = curve(run, "optimizer/learning_rate"), curve(run, "optimizer/embedding_learning_rate")
    config = make_config(optim__warmup=0.25, optim__min_lr=0.0).optim
    for step in range(1, 13):
        factor = lr_factor((step - 0.5) / 12, config)
        assert rates[step] == pytest.approx(config.lr * factor)
        assert rest[step] == pytest.approx(config.embedding_lr * factor)
    assert rates[12] < 0.06 * config.lr


# --- what decides the weights ------------------------------------------------------------------------


def test_logging_evaluating_and_saving_change_no_weight(go: Any) -> None:
    def use_randomness(step: int, model: GPT, metrics: Metrics) -> None:
        torch.rand(3)
        random.random()

    settings = {"model__dropout": 0.2}
    calm, _ = go("calm", train__log_every=100, train__eval_every=100, train__save_every=100, **settings)
    busy, _ = go(
        "busy", train__log_every=1, train__eval_every=1, train__save_every=1, train__keep_last=3,
        probes=(use_randomness,), **settings,
    )  # fmt: skip
    assert same(tensors(calm, 12), tensors(busy, 12))


def test_a_seed_determines_the_run(go: Any) -> None:
    first, _ = go("first", model__dropout=0.1)
    again, _ = go("again", model__dropout=0.1)
    other, _ = go("other", model__dropout=0.1, train__seed=7)
    assert same(tensors(first, 12), tensors(again, 12))
    assert curve(first, "loss") == curve(again, "loss")
    assert not same(tensors(first, 12), tensors(other, 12))


def test_by_default_a_run_evaluates_a_few_times(go: Any) -> None:
    run, _ = go(train__eval_every="auto", train__steps=20, train__save_every=100)
    assert list(curve(run, "loss", "validation")) == [0, 5, 10, 15, 20]


# --- when it ends ------------------------------------------------------------------------------------


def test_a_finished_run_is_refused_and_unchanged_until_it_gets_longer(go: Any) -> None:
    run, _ = go()
    before = (run / "metrics.jsonl").read_bytes()
    with pytest.raises(RunFinishedError, match="run run is finished at step 12"):
        go(resume=True)
    assert (run / "metrics.jsonl").read_bytes() == before
    assert go(resume=True, train__steps=24)[1].state.step == 24


def test_patience_stops_a_run_that_can_be_resumed_exactly(go: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Step 0 is no candidate for the best, and an equal loss is no improvement."""
    losses = [0.1, 9.0, 8.0, 8.5, 7.0, 7.0, 7.5, 6.9, 6.5, 7.7, 7.6, 7.5, 7.4]
    script_losses(monkeypatch, losses)
    untouched, _ = go("untouched", train__eval_every=1, train__save_every=1, train__keep_last=20)
    script_losses(monkeypatch, losses)
    run, early = go(train__eval_every=1, train__patience=2)
    assert (early.is_early, early.state.step) == (True, 6)
    assert same(tensors(run, 6), tensors(untouched, 6))
    with pytest.raises(RunFinishedError, match="stopped early at step 6"):
        go(resume=True, train__eval_every=1, train__patience=2)
    script_losses(monkeypatch, losses[7:])
    _, done = go(resume=True, train__eval_every=1, train__patience=0)
    assert not done.is_early
    assert same(tensors(run, 12), tensors(untouched, 12))
    assert curve(run, "loss", "validation") == curve(untouched, "loss", "validation") == dict(enumerate(losses))
    assert (done.state.best_step, done.state.best_loss) == (8, 6.5)
    assert best_step(run) == best_step(untouched) == 8


def test_the_first_and_last_model_are_evaluated_and_the_last_is_saved(go: Any) -> None:
    seen: list[int] = []
    run, _ = go(
        train__steps=7, train__eval_every=5, train__save_every=100, train__log_every=100,
        probes=(lambda step, model, metrics: seen.append(step),),
    )  # fmt: skip
    validation = curve(run, "loss", "validation")
    assert seen == [0, 5, 7] == list(validation)
    assert list(curve(run, "loss")) == [7]
    assert read_metadata(step_folder(run, 7)).state.validation_loss == validation[7]
    assert validation[0] == pytest.approx(math.log(make_data().tokenizer.vocab_size), rel=0.05)
    assert best_step(run) == min((5, 7), key=lambda step: validation[step])


def test_overfitting_means_falling_training_and_rising_validation_loss() -> None:
    state = TrainState(train_loss_at_best=1.0, best_loss=1.2, best_step=5, evaluations_since_best=2)
    cases = {(0.8, 1.5): True, (1.3, 1.5): False, (0.8, 1.2): False, (None, 1.5): False}
    for (state.train_loss, state.validation_loss), expected in cases.items():
        assert is_overfitting(state) is expected
    state.train_loss, state.validation_loss, state.evaluations_since_best = 0.8, 1.5, 1
    assert is_overfitting(state) is False, "one worse evaluation is noise"


# --- when it cannot continue -------------------------------------------------------------------------


def test_the_first_save_says_that_it_retries(
    go: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failing, publish = [OSError(errno.ENOSPC, "No space left on device")], storage.publish

    def refuse_once(folder: Path) -> Any:
        if failing:
            raise failing.pop()
        return publish(folder)

    monkeypatch.setattr(storage, "publish", refuse_once)
    monkeypatch.setattr(storage, "RETRY_PAUSES", (0.0,))
    go()
    problem = "cannot save the checkpoint at step 0: No space left on device"
    assert f"{problem}; retrying in 0 s\n" in capsys.readouterr().err


def test_a_run_that_stops_names_a_checkpoint_and_a_setting_that_may_help(
    go: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    disturb(monkeypatch, {7: "gradient"})
    with pytest.raises(TrainingError, match="step 7: ") as error:
        go(runtime__dtype="bfloat16")
    assert (error.value.saved_step, error.value.settings) == (5, ("runtime.dtype=float32",))


@pytest.mark.parametrize("eval_every", [1, 100])
def test_a_run_that_diverges_keeps_its_last_good_checkpoint_and_valid_json(
    go: Any, tmp_path: Path, eval_every: int
) -> None:
    settings = {"optim__name": "adamw", "optim__schedule": "constant", "optim__warmup": 0.0}
    go(train__steps=3, **settings)
    run = tmp_path / "run"
    before = tensors(run, 3)
    changed = {"optim__lr": 1e18, "train__steps": 9, "train__eval_every": eval_every, "train__save_every": 1}
    with pytest.raises(TrainingError, match=r"step \d: .*learning rate 1e\+18, gradient norm .*float32\)") as error:
        go(resume=True, **{**settings, **changed})
    assert error.value.saved_step is not None
    assert same(tensors(run, 3), before)

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} in JSON")

    for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        json.loads(line, parse_constant=refuse)
    for step in checkpoint_steps(run):
        json.loads((step_folder(run, step) / "metadata.json").read_text(encoding="utf-8"), parse_constant=refuse)
        assert math.isfinite(read_metadata(step_folder(run, step)).state.best_loss or 0)


@pytest.mark.parametrize(("module", "where"), [(learner, "reseed"), (loop, "evaluate")])
def test_running_out_of_memory_is_a_typed_error(
    go: Any, monkeypatch: pytest.MonkeyPatch, module: Any, where: str
) -> None:
    monkeypatch.setattr(module, where, lambda *_, **__: torch.empty(1 << 60))
    with pytest.raises(InsufficientMemoryError, match="out of memory"):
        go()


def test_other_runtime_errors_are_not_hidden(go: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learner, "batch_at", lambda *_, **__: (torch.zeros(4, 16).long(), torch.full((4, 16), 99)))
    with pytest.raises((RuntimeError, IndexError), match=r"out of bounds|out of range"):
        go()


def test_a_system_error_names_its_file(go: Any, tmp_path: Path) -> None:
    def read(*_: object) -> None:
        (tmp_path / "no such file").read_bytes()

    with pytest.raises(TrainingError, match=r"no such file: No such file or directory") as error:
        go(probes=(read,))
    assert error.value.saved_step == 0


def test_steps_from_python_leave_the_curves_to_a_later_resume(go: Any) -> None:
    run, _ = go(train__steps=4)
    before = (run / "metrics.jsonl").read_bytes()
    checkpoint = load_checkpoint(step_folder(run, 4))
    learner = make_learner(checkpoint.config, make_data(), checkpoint)
    training = Training(checkpoint.config, run, make_data(), learner, replace(checkpoint.metadata.state))
    training.step()
    training.save()
    go(resume=True, train__steps=8)
    assert (run / "metrics.jsonl").read_bytes().startswith(before)


@pytest.mark.slow
def test_training_does_not_import_the_compiler_unless_it_uses_it(tmp_path: Path) -> None:
    """Importing it takes nearly a second."""
    (tmp_path / "text.txt").write_text("to be or not to be " * 20)
    code = (
        "import sys; from minigpt.cli.app import app; app(['train', 'text.txt', '-s', 'train.steps=2', '-s', "
        "'runtime.compile=false'], standalone_mode=False); sys.exit('torch._dynamo' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_start_from_trained_weights_runs_out_of_patience_after_the_warmup(
    go: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loss of the start counts. The first steps of a new schedule may raise it."""
    start, _ = go("start")
    script_losses(monkeypatch, [1.0, 1.4, 1.3, 1.2, 1.1, 1.05, 0.9])
    config = make_config(train__eval_every=1, train__patience=2, optim__warmup=0.25)  # 3 of 12 steps
    (start.parent / "new").mkdir()
    outcome = train(config, start.parent / "new", make_data(), start=load_checkpoint(start))
    assert (outcome.is_early, outcome.state.step) == (True, 5)
    assert (outcome.state.best_step, outcome.state.best_loss) == (0, 1.0)
