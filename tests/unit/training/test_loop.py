"""The loop: what a step computes, when a run logs, evaluates, saves and stops, and what it says when it cannot."""

import json
import math
import random
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from small_runs import make_config, make_data, same, stop_at, tensors
from torch import Tensor

import minigpt.training.loop as training
from minigpt.errors import InsufficientMemoryError, UserError
from minigpt.model import memory as room
from minigpt.model.gpt import GPT
from minigpt.model.load import load_model
from minigpt.storage.checkpoint import load_checkpoint, load_optimizer, save_checkpoint
from minigpt.storage.metadata import TrainState, read_metadata
from minigpt.storage.runs import checkpoint_steps, pointed_step, step_folder
from minigpt.training import evaluate as evaluation
from minigpt.training import optim
from minigpt.training.loop import Outcome, Probe, Training, train
from minigpt.training.metrics import Metrics
from minigpt.training.schedule import run_steps

pytestmark = pytest.mark.usefixtures("quick_and_clean")


def curve(run: Path, tag: str) -> dict[int, float]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return {line["step"]: line[tag] for line in lines if tag in line}


@pytest.fixture
def go(tmp_path: Path) -> Callable[..., tuple[Path, Outcome]]:
    """Train in a folder called `name`; the arguments are settings, or those of `train`."""

    def start(name: str = "run", *, resume: bool = False, probes: tuple[Probe, ...] = (), **changes: Any) -> Any:
        run = tmp_path / name
        run.mkdir(exist_ok=True)
        (run / "config.yaml").touch()  # by which a run's folder is known
        checkpoint = step_folder(run, checkpoint_steps(run)[-1]) if resume else None
        return run, train(make_config(**changes), run, make_data(), resume=checkpoint, probes=probes)

    return start


# --- one step ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_accumulation_gives_the_update_of_the_large_batch(tmp_path: Path, name: str) -> None:
    """Gradients up to rounding."""
    loops: list[tuple[Training, list[Tensor]]] = []
    for micro in (None, 4, 1):
        config = make_config(optim__name=name, train__batch_size=8, train__micro_batch_size=micro)
        loop = Training(config, tmp_path, make_data())
        batches: list[int] = []
        loop.loss = lambda x, y, loop=loop, batches=batches: (batches.append(len(x)), loop._loss(x, y))[1]
        loop.step()
        loops.append((loop, [p.grad.clone() for p in loop.model.parameters() if p.grad is not None]))
        loop.step()
        assert batches == [micro or 8] * (2 * 8 // (micro or 8))
    (whole, gradients), *parts = loops
    for part, found in parts:
        torch.testing.assert_close(found, gradients, rtol=1e-4, atol=1e-7)
        assert part.state.loss_sum == pytest.approx(whole.state.loss_sum, rel=1e-5)
        for ours, theirs in zip(part.model.parameters(), whole.model.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_muon_multiplies_in_the_precision_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    """In bfloat16 a processor without it takes four times as long, which was half of a small model's step."""
    orthogonal, found = optim.orthogonal, []
    monkeypatch.setattr(optim, "orthogonal", lambda x, how: (found.append(x.dtype), orthogonal(x, how))[1])
    Training(make_config(runtime__dtype=dtype, optim__name="muon"), tmp_path, make_data()).step()
    assert set(found) == {getattr(torch, dtype)}


def test_the_logged_training_loss_is_the_mean_over_all_steps_since_the_last_line(go: Any) -> None:
    """The original reports the last micro-batch's loss only."""
    each, _ = go("each", train__log_every=1, train__micro_batch_size=2)
    thirds, _ = go("thirds", train__log_every=3, train__micro_batch_size=2)
    losses = curve(each, "loss/train")
    means = {step: sum(losses[step - i] for i in range(3)) / 3 for step in (3, 6, 9, 12)}
    assert curve(thirds, "loss/train") == pytest.approx(means, rel=1e-12)


def test_times_never_go_back_though_the_first_evaluation_takes_none(go: Any) -> None:
    run, _ = go(train__log_every=1, probes=(lambda *_: time.sleep(0.02),))
    times = [json.loads(line)["time"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert len(times) > 12
    assert times == sorted(times)
    assert times[0] < 0.02


def test_an_error_of_the_system_names_its_file_where_that_is_not_the_run(go: Any, tmp_path: Path) -> None:
    """It said that the run could not be written."""

    def reads(*_: object) -> None:
        (tmp_path / "no such file").read_bytes()

    with pytest.raises(UserError, match=r"no such file: No such file or directory; no checkpoint was saved") as error:
        go(probes=(reads,))
    assert "cannot write" not in str(error.value)


def test_the_clipped_share_counts_the_steps_whose_gradient_was_cut_to_the_limit(go: Any) -> None:
    free, _ = go("free", optim__grad_clip=0.0, train__log_every=1)
    norms = curve(free, "optimizer/gradient_norm")
    assert set(curve(free, "optimizer/clipped_share").values()) == {0.0}

    limit = (norms[1] + norms[2]) / 2  # of the first two steps one is above it, as long as nothing was clipped before
    assert norms[2] > limit
    run, _ = go("clipped", optim__grad_clip=limit, optim__lr=1e-9, optim__muon_lr=1e-9, train__log_every=1)
    shares, seen = curve(run, "optimizer/clipped_share"), curve(run, "optimizer/gradient_norm")
    assert shares == {step: float(norm > limit) for step, norm in seen.items()}
    everything, _ = go("all", optim__grad_clip=1e-6)
    assert set(curve(everything, "optimizer/clipped_share").values()) == {1.0}


@pytest.mark.parametrize("share", [0.01, 0.9, 0.999, 1.001, 0.0], ids=str)
def test_a_gradient_over_the_limit_is_cut_to_it_and_no_other_is_changed(share: float, tmp_path: Path) -> None:
    """The limit is given as a share of the norm of the first step; zero is none."""
    free = Training(make_config(optim__grad_clip=0.0), tmp_path, make_data())
    free.step()
    loop = Training(make_config(optim__grad_clip=share * free.gradient_norm), tmp_path, make_data())
    loop.step()
    gradients = [[p.grad for p in run.model.parameters() if p.grad is not None] for run in (loop, free)]
    norm = torch.linalg.vector_norm(torch.stack([gradient.norm() for gradient in gradients[0]])).item()
    if 0 < share < 1:
        assert norm == pytest.approx(share * free.gradient_norm, rel=1e-4)
    else:
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(*gradients, strict=True))


def test_the_logged_rates_follow_the_schedule_to_its_end(go: Any) -> None:
    run, _ = go(train__log_every=1, optim__warmup=0.25, optim__min_lr=0.0)
    rates, muon = curve(run, "optimizer/learning_rate"), curve(run, "optimizer/muon_learning_rate")
    config = make_config(optim__warmup=0.25, optim__min_lr=0.0).optim
    for step in range(1, 13):
        factor = training.lr_factor((step - 0.5) / 12, config)
        assert rates[step] == pytest.approx(config.lr * factor)
        assert muon[step] == pytest.approx(config.muon_lr * factor)
    assert rates[12] < 0.06 * config.lr


# --- the same again ----------------------------------------------------------------------------------


def test_how_often_a_run_looks_and_saves_changes_no_weight(go: Any) -> None:
    """Evaluation, samples and saving drew from the generator of the batches in the original."""

    def draws(step: int, model: GPT, metrics: Metrics) -> None:
        torch.rand(3)
        random.random()

    settings = {"model__dropout": 0.2, "train__ema": 0.9}
    calm, _ = go("calm", train__log_every=100, train__eval_every=100, train__save_every=100, **settings)
    busy, _ = go(
        "busy", train__log_every=1, train__eval_every=1, train__save_every=1, train__keep_last=3,
        train__histograms=True, train__hparams=True, probes=(draws,), **settings,
    )  # fmt: skip
    assert same(tensors(calm, 12), tensors(busy, 12))


def test_a_seed_names_the_run(go: Any) -> None:
    first, _ = go("first", model__dropout=0.1)
    again, _ = go("again", model__dropout=0.1)
    other, _ = go("other", model__dropout=0.1, train__seed=7)
    assert same(tensors(first, 12), tensors(again, 12))
    assert curve(first, "loss/train") == curve(again, "loss/train")
    assert not same(tensors(first, 12), tensors(other, 12))


# --- how far -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("epochs", "tokens", "steps"),
    [(1, 640, 10), (1, 641, 11), (1, 639, 10), (2.5, 640, 25), (0.001, 640, 1), (3, 64, 3)],
)
def test_epochs_become_steps(epochs: float, tokens: int, steps: int) -> None:
    """A batch here is 4 x 16 = 64 tokens; a part of a step is a step."""
    assert run_steps(make_config(train__epochs=epochs), tokens) == steps


def test_a_run_in_epochs_ends_at_its_last_step(go: Any) -> None:
    run, outcome = go(train__epochs=0.5)
    assert outcome.state.step == math.ceil(0.5 * len(make_data().train) / 64)
    assert outcome.state.tokens_seen == 64 * outcome.state.step
    assert max(curve(run, "loss/validation")) == outcome.state.step


@pytest.mark.alone
def test_a_run_in_minutes_ends_near_its_time_with_the_schedule_at_its_end_and_can_be_resumed(go: Any) -> None:
    length = {"train__minutes": 1.2 / 60, "train__eval_every": 20, "train__save_every": 10_000, "train__log_every": 1}
    run, stopped = go(probes=(stop_at(20),), **length)
    assert stopped.signal == signal.SIGINT
    assert stopped.state.step == 20
    half = stopped.state.seconds
    assert 0 < half < 1.2
    began = time.perf_counter()
    _, done = go(resume=True, **length)
    assert done.signal is None
    assert 1.2 <= done.state.seconds < 1.2 + 1
    assert time.perf_counter() - began < 1.2 - half + 10
    rates = curve(run, "optimizer/learning_rate")
    assert rates[20] / 3e-3 == pytest.approx(1 - (half / 1.2 - 0.02) / 0.98, abs=0.3)
    assert rates[done.state.step] < 0.1 * 3e-3
    with pytest.raises(UserError, match=r"is finished at step \d+; to go on: .*train\.minutes=0\.04"):
        go(resume=True, **length)


@pytest.mark.alone
def test_getting_ready_takes_no_time_off_a_run_in_minutes(go: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compilation can take most of a short run, and its warm-up with it."""
    ready = Training._get_ready
    monkeypatch.setattr(Training, "_get_ready", lambda self: (time.sleep(0.5), ready(self)))
    _, outcome = go(train__minutes=0.4 / 60)
    assert outcome.state.step > 5


@pytest.mark.alone
def test_the_first_look_takes_no_time_off_a_run_in_minutes(go: Any) -> None:
    """It comes before the first step, and once made of a short run a single one at the end of its schedule."""
    slow_at_first: Probe = lambda step, model, metrics: time.sleep(0.5 * (step == 0))  # noqa: E731
    _, outcome = go(train__minutes=0.4 / 60, probes=(slow_at_first,))
    assert outcome.state.step > 5


def test_a_run_longer_than_it_is_now_told_says_how_to_go_on(go: Any) -> None:
    settings = {"train__minutes": 1.2 / 60}
    go(**settings)
    with pytest.raises(UserError, match=r"--set train\.minutes=1$") as error:
        go(resume=True, train__minutes=0.3 / 60)
    assert "is finished at step" in str(error.value)


def test_a_finished_run_says_how_to_go_on_and_does(go: Any) -> None:
    run, _ = go()
    before = (run / "metrics.jsonl").read_bytes()
    with pytest.raises(UserError) as error:
        go(resume=True)
    on = rf"minigpt train --resume {re.escape(str(run))} --set train\.steps=24"
    assert re.fullmatch(rf"run run is finished at step 12; to go on: {on}", str(error.value))
    assert (run / "metrics.jsonl").read_bytes() == before
    _, outcome = go(resume=True, train__steps=24)
    assert outcome.state.step == 24


def test_a_run_that_is_out_of_patience_at_its_last_step_goes_on_as_it_says(
    go: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It once advised patience=0 alone, and when that was typed more steps alone, for ever."""
    scripted(monkeypatch, [3.0, 2.0, *[2.5] * 11])
    settings = {"train__eval_every": 3, "train__patience": 3}
    run, done = go(**settings)
    assert (done.state.step, done.stopped_early) == (12, False)
    assert done.longer == "--set train.steps=24 --set train.patience=0"
    on = rf"minigpt train --resume {re.escape(str(run))} {done.longer}"
    with pytest.raises(UserError, match=rf"run run is finished at step 12; to go on: {on}$"):
        go(resume=True, **settings)
    _, longer = go(resume=True, **{**settings, "train__steps": 24, "train__patience": 0})
    assert longer.state.step == 24


def test_going_on_from_the_end_is_not_stopped_in_the_rise_of_the_rate(go: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has fallen to zero and begins anew at half its peak: the loss is above its best for longer than patience."""
    scripted(monkeypatch, [3.0, 2.9, 2.8, 2.7, 2.6])
    _, done = go(train__eval_every=3, train__patience=4)
    assert done.longer == "--set train.steps=24 --set train.patience=0"
    scripted(monkeypatch, [3.0, 2.9, 2.8, 2.7, 2.6])
    _, level = go("level", train__eval_every=3, train__patience=4, optim__schedule="constant")
    assert level.longer == "--set train.steps=24"
    scripted(monkeypatch, [3.0, 2.9])
    assert go("without", train__eval_every=12)[1].longer == "--set train.steps=24"


def test_early_stopping_of_a_run_in_minutes_asks_for_patience_and_not_for_minutes(
    go: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted(monkeypatch, [3.0, 2.0, 2.5, 2.5])
    _, early = go(train__minutes=60, train__eval_every=1, train__patience=2)
    assert (early.stopped_early, early.state.step, early.longer) == (True, 3, "--set train.patience=0")


def scripted(monkeypatch: pytest.MonkeyPatch, losses: list[float]) -> None:
    """Let the validation losses of the coming evaluations be these; the models stay what they are."""
    coming = iter(losses)
    monkeypatch.setattr(training, "evaluate", lambda *_, **__: evaluation.EvalResult(next(coming), 1.0, 1.0, 1))


def test_patience_stops_a_run_and_without_it_the_run_goes_on_exactly(go: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The untrained model of step 0 is no best one, and to equal the best is not to beat it."""
    losses = [0.1, 9.0, 8.0, 8.5, 7.0, 7.0, 7.5, 6.9, 6.5, 7.7, 7.6, 7.5, 7.4]
    scripted(monkeypatch, losses)
    untouched, _ = go("untouched", train__eval_every=1, train__save_every=1, train__keep_last=20)
    scripted(monkeypatch, losses)
    run, early = go(train__eval_every=1, train__patience=2)
    assert early.stopped_early
    assert early.state.step == 6
    assert same(tensors(run, 6), tensors(untouched, 6))
    with pytest.raises(UserError, match=r"no longer improved, at step 6; .*train\.patience=0"):
        go(resume=True, train__eval_every=1, train__patience=2)
    scripted(monkeypatch, losses[7:])
    _, on = go(resume=True, train__eval_every=1, train__patience=0)
    assert not on.stopped_early
    assert same(tensors(run, 12), tensors(untouched, 12))
    assert curve(run, "loss/validation") == curve(untouched, "loss/validation") == dict(enumerate(losses))
    assert (on.state.best_step, on.state.best_loss) == (8, 6.5)
    for folder in (run, untouched):
        assert pointed_step(folder, "best") == 8
        assert load_checkpoint(folder).metadata.step == 8


def test_the_first_and_last_model_are_evaluated_and_the_last_is_saved_whatever_the_intervals(go: Any) -> None:
    seen: list[int] = []
    run, outcome = go(
        train__steps=7, train__eval_every=5, train__save_every=100, train__log_every=100,
        probes=(lambda step, model, metrics: seen.append(step),),
    )  # fmt: skip
    assert seen == [0, 5, 7] == list(curve(run, "loss/validation"))
    assert list(curve(run, "loss/train")) == [7]
    assert outcome.checkpoint == step_folder(run, 7)
    assert load_checkpoint(run, "last").metadata.validation_loss == curve(run, "loss/validation")[7]
    assert curve(run, "loss/validation")[0] == pytest.approx(math.log(make_data().tokenizer.vocab_size), rel=0.05)
    validation = curve(run, "loss/validation")
    assert pointed_step(run, "best") == min((5, 7), key=lambda step: validation[step])


def test_overfitting_is_said_when_training_falls_and_validation_rises_and_not_of_divergence() -> None:
    state = TrainState(train_loss_at_best=1.0, best_loss=1.2, best_step=5, evaluations_since_best=2)
    cases = {(0.8, 1.5): True, (1.3, 1.5): False, (0.8, 1.2): False, (None, 1.5): False}
    for (state.train_loss, state.validation_loss), expected in cases.items():
        assert state.overfitting is expected
    state.train_loss, state.validation_loss, state.evaluations_since_best = 0.8, 1.5, 1
    assert state.overfitting is False, "one worse evaluation is noise"


def test_a_small_text_read_often_is_overfitted_and_said_to_be(tmp_path: Path) -> None:
    changes = {"train__steps": 80, "train__eval_every": 10, "train__log_every": 10, "optim__schedule": "constant"}
    noise = make_data("".join(random.Random(1).choices("abcdefgh", k=300)))
    state = train(make_config(**changes, optim__lr=0.02), tmp_path, noise).state
    assert state.overfitting
    assert 0 < state.best_step < 80


# --- the average of the weights ----------------------------------------------------------------------


def test_the_average_is_what_is_evaluated_and_saved_and_the_raw_weights_go_on(go: Any) -> None:
    plain, _ = go("plain", train__steps=8)
    averages: list[Tensor] = []
    run, _ = go(
        train__steps=8,
        train__ema=0.9,
        probes=(lambda step, model, metrics: averages.append(model.norm.weight.clone()),),
    )
    saved = load_file(step_folder(run, 8) / "model.safetensors")
    raw = load_optimizer(load_checkpoint(run, "last"))
    expected = load_file(step_folder(plain, 8) / "model.safetensors")
    assert all(np.array_equal(raw[f"weights/{name}"], tensor.numpy()) for name, tensor in expected.items())
    assert any(not torch.equal(saved[name], tensor) for name, tensor in expected.items())
    assert torch.equal(averages[-1], saved["norm.weight"])
    data = make_data()
    loss = evaluation.evaluate(load_model(load_checkpoint(run, "last")), data.validation, data.tokenizer).loss
    assert loss == curve(run, "loss/validation")[8] != curve(plain, "loss/validation")[8]


def test_the_average_follows_its_formula(tmp_path: Path) -> None:
    loop = Training(make_config(train__ema=0.3, optim__warmup=0.0), tmp_path, make_data())
    assert loop.average is not None
    expected = loop.model.token_embedding.weight.detach().clone()
    for step in range(6):
        loop.step()
        decay = min(0.3, (step + 1) / (step + 10))
        expected = decay * expected + (1 - decay) * loop.model.token_embedding.weight.detach()
    torch.testing.assert_close(loop.average.token_embedding.weight, expected, atol=1e-7, rtol=0)


# --- when it cannot go on ----------------------------------------------------------------------------


def test_a_loss_that_is_not_finite_stops_before_the_update_and_says_all_one_needs(tmp_path: Path) -> None:
    loop = Training(make_config(optim__name="adamw", optim__warmup=0.0), tmp_path, make_data())
    loop.step()
    with torch.no_grad():
        loop.model.token_embedding.weight[0, 0] = math.nan
    before = {**loop.model.state_dict(), **loop.optimizer.state_dict()}
    before = {name: tensor.clone() for name, tensor in before.items()}
    with pytest.raises(UserError) as error:
        loop.step()
    message = str(error.value)
    assert "step 2: the weights are not finite (learning rate 0.0026, gradient norm nan, float32)" in message
    assert "no checkpoint was saved yet" in message
    assert "\n" not in message
    after = {**loop.model.state_dict(), **loop.optimizer.state_dict()}
    assert all(torch.equal(after[name].nan_to_num(7), tensor.nan_to_num(7)) for name, tensor in before.items())
    assert loop.state.loss_count == 1


def disturbed(monkeypatch: pytest.MonkeyPatch, kinds: dict[int, str]) -> None:
    """Let the update that leads to one of these steps go wrong: its loss, its gradient, or by a leap of the loss."""
    loss = Training._loss

    def wrong(self: Training, x: Tensor, y: Tensor) -> Tensor:
        value = loss(self, x, y)
        kind = kinds.get(self.state.step + 1)
        if kind == "gradient":
            return value + (self.model.norm.weight * 0).sum().sqrt()  # is 0, and its derivative infinite
        return value * {"loss": math.nan, "inf": math.inf, "spike": 10.0}.get(str(kind), 1.0)

    monkeypatch.setattr(Training, "_loss", wrong)


@pytest.mark.parametrize(
    ("kind", "says"),
    [("loss", "the loss is nan"), ("inf", "the loss is inf"), ("gradient", "the gradient is not finite")],
)
def test_a_step_that_is_not_finite_ends_the_run_with_all_that_was_saved(
    go: Any, monkeypatch: pytest.MonkeyPatch, kind: str, says: str
) -> None:
    """It names a checkpoint from which to go on, and that works with what it says to set."""
    disturbed(monkeypatch, {7: kind})
    with pytest.raises(UserError) as error:
        go()
    message = str(error.value)
    assert f"step 7: {says} (" in message
    assert "gradient norm" in message
    assert "the checkpoint of step 5 is intact" in message
    assert re.search(r"go on from it: minigpt train --resume \S+ --set train\.on_nonfinite=skip", message)
    assert "runtime.dtype" not in message, "it is float32 already"
    assert "\n" not in message
    run, outcome = go(resume=True, train__on_nonfinite="skip")
    assert (outcome.state.step, outcome.state.skipped) == (12, 1)
    assert curve(run, "optimizer/skipped") == {7: 1}


@pytest.mark.parametrize("kind", ["loss", "gradient"])
def test_a_skipped_step_changes_nothing_but_the_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Neither weights nor the optimizer's averages nor the moving average nor the logged mean."""
    disturbed(monkeypatch, {3: kind})
    loop = Training(make_config(train__on_nonfinite="skip", train__ema=0.9), tmp_path, make_data())
    with Metrics(tmp_path, 0, 0, 12) as loop.metrics:
        for step in (1, 2):
            loop.step()
            assert loop.state.step == step
        held = (loop.model, loop.average, loop.optimizer)
        before = [{key: value.clone() for key, value in part.state_dict().items()} for part in held if part]
        sums = (loop.state.loss_sum, loop.state.loss_count, loop.state.clipped_count)
        loop.step()
        assert all(same(part.state_dict(), old) for part, old in zip(held, before, strict=True) if part)
        assert (loop.state.loss_sum, loop.state.loss_count, loop.state.clipped_count) == sums
        assert (loop.state.step, loop.state.skipped, loop.state.tokens_seen) == (3, 1, 3 * 64)
        loop.step()
        assert not same(loop.model.state_dict(), before[0])


def test_histograms_are_written_when_an_evaluation_falls_on_a_skipped_step(
    go: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clipping makes every gradient of such a step NaN, of which there is no histogram."""
    disturbed(monkeypatch, {5: "gradient"})
    _, done = go(train__on_nonfinite="skip", train__histograms=True, train__eval_every=5)
    assert (done.state.step, done.state.skipped) == (12, 1)


@pytest.mark.parametrize("stop", [6, 8])
def test_a_run_with_skipped_steps_is_resumed_exactly(go: Any, monkeypatch: pytest.MonkeyPatch, stop: int) -> None:
    disturbed(monkeypatch, {4: "loss", 6: "gradient", 7: "loss", 10: "loss", 11: "loss", 12: "loss"})
    settings = {"train__on_nonfinite": "skip", "train__eval_every": 1, "model__dropout": 0.1}
    whole, done = go("whole", **settings)
    run, stopped = go(probes=(stop_at(stop),), **settings)
    assert (stopped.signal, stopped.state.step) == (signal.SIGINT, stop)
    _, resumed = go(resume=True, **settings)
    assert same(tensors(run, 12), tensors(whole, 12))
    assert (resumed.state.skipped, resumed.state.loss_count) == (done.state.skipped, done.state.loss_count) == (6, 0)
    for tag in ("loss/train", "optimizer/skipped", "loss/validation"):
        assert curve(run, tag) == curve(whole, tag), tag
    assert list(curve(run, "loss/train")) == [3, 6, 9], "of 10 to 12 there is no loss to log"
    assert curve(run, "optimizer/skipped") == {4: 1, 6: 2, 7: 3, 10: 4, 11: 5, 12: 6}


@pytest.mark.parametrize("most", [0, 2])
def test_no_more_updates_are_left_out_than_allowed_over_all_resumptions(
    go: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], most: int
) -> None:
    disturbed(monkeypatch, dict.fromkeys((4, 6, 8, 9), "loss"))
    settings = {"train__on_nonfinite": "skip", "train__max_skipped": most}
    with pytest.raises(
        UserError, match=rf"step {(4, 6, 8)[most]}: the loss is nan, after {most} updates were left out"
    ) as error:
        go(**settings)
    assert "on_nonfinite" not in str(error.value), "it is set already"
    assert ("--set train.max_skipped=4, or start anew" in str(error.value)) == (most == 2), "0 has no checkpoint yet"
    lines = [f"step {step}: the loss is nan; its update is left out ({n} so far)" for n, step in ((1, 4), (2, 6))]
    printed = capsys.readouterr().err
    assert [line for line in printed.splitlines() if "left out" in line] == lines[:most]
    if most:
        with pytest.raises(UserError, match="step 8: the loss is nan, after 2 updates were left out"):
            go(resume=True, **settings)
        _, outcome = go(resume=True, **{**settings, "train__max_skipped": 4})
        assert outcome.state.skipped == 4


@pytest.mark.parametrize("mode", ["stop", "skip"])
def test_weights_that_are_not_finite_always_end_the_run(tmp_path: Path, mode: str) -> None:
    """No later step can make them finite again."""
    loop = Training(make_config(train__on_nonfinite=mode), tmp_path, make_data())
    with Metrics(tmp_path, 0, 0, 12) as loop.metrics:
        loop.step()
        with torch.no_grad():
            loop.model.norm.weight[0] = math.inf
        with pytest.raises(UserError, match="step 2: the weights are not finite"):
            loop.step()
    assert loop.state.skipped == 0


def test_a_leap_of_the_loss_is_told_and_logged_with_its_gradient(
    go: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calm, _ = go("calm", train__log_every=1)
    assert curve(calm, "loss/spike") == {}
    assert "jumped" not in capsys.readouterr().err
    disturbed(monkeypatch, {2: "spike", 8: "spike"})  # before step 3 there is no mean to compare with
    run, _ = go(optim__grad_clip=0.0)
    (step, spike), *others = curve(run, "loss/spike").items()
    assert (step, others) == (8, [])
    mean, norm = curve(run, "loss/train")[6], curve(run, "loss/spike_gradient_norm")[8]
    assert spike > 1.5 * mean
    said = f"step 8: the loss jumped to {spike:.4f} from a mean of {mean:.4f}, gradient norm {norm:.3g}"
    assert said in capsys.readouterr().err.splitlines()
    assert norm > 3 * max(curve(calm, "optimizer/gradient_norm").values())


@pytest.mark.parametrize("eval_every", [1, 100])
def test_a_run_that_blows_up_keeps_its_last_good_checkpoint_and_valid_json(
    go: Any, tmp_path: Path, eval_every: int
) -> None:
    """A validation loss of NaN once became the best one, and NaN in meta.json."""
    settings = {"optim__name": "adamw", "optim__schedule": "constant", "optim__warmup": 0.0}
    go(train__steps=3, **settings)
    run = tmp_path / "run"
    before = tensors(run, 3)
    changed = {"optim__lr": 1e38, "train__steps": 9, "train__eval_every": eval_every, "train__save_every": 1}
    with pytest.raises(
        UserError,
        match=r"step \d: .*learning rate 1e\+38, gradient norm .*float32\); the checkpoint of step \d is intact",
    ):
        go(resume=True, **{**settings, **changed})
    assert 3 in checkpoint_steps(run)
    assert same(tensors(run, 3), before)

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} in JSON")

    for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        json.loads(line, parse_constant=refuse)
    for step in checkpoint_steps(run):
        json.loads((step_folder(run, step) / "meta.json").read_text(encoding="utf-8"), parse_constant=refuse)
        assert math.isfinite(read_metadata(step_folder(run, step)).state.best_loss or 0)


def test_a_batch_that_does_not_fit_is_refused_with_one_that_does(go: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = GPT(make_config().model, make_data().tokenizer.vocab_size)
    fixed = 16 * sum(p.numel() for p in model.parameters())
    monkeypatch.setattr(room, "backward_bytes", lambda compute, weights: 1_000_000)
    monkeypatch.setattr(room, "free_memory_bytes", lambda runtime: fixed + 6_000_000)
    with pytest.raises(InsufficientMemoryError) as error:
        go("large", train__batch_size=16)
    assert error.value.settings == ("train.micro_batch_size=4",)
    go("fits", train__batch_size=16, train__micro_batch_size=4, train__steps=1)
    monkeypatch.setattr(room, "free_memory_bytes", lambda runtime: fixed)
    with pytest.raises(InsufficientMemoryError) as error:
        go("huge")
    assert error.value.settings == ()


def test_what_a_resumed_run_holds_already_is_not_asked_for_again(go: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its averages were loaded: of the rest, only the gradients are to come."""
    run, _ = go(train__steps=3)
    weights = sum(array.nbytes for array in load_checkpoint(run).weights.values())
    monkeypatch.setattr(room, "backward_bytes", lambda compute, weights: 1000)
    monkeypatch.setattr(room, "free_memory_bytes", lambda device: weights + 4000)
    monkeypatch.setattr(training, "check_model", lambda *_, **__: None)
    assert go(resume=True, train__steps=4)[1].state.step == 4
    with pytest.raises(UserError, match="training with 4 sequences at once needs about"):
        go("new", train__steps=3)


@pytest.mark.parametrize(
    ("where", "micro", "problem", "settings"),
    [
        ("reseed", None, "out of memory with 4 sequences at once", ("train.micro_batch_size=2",)),
        ("reseed", 1, "out of memory with 1 sequence at once", ()),
        ("evaluate", 1, "out of memory with 1 sequence at once", ()),
    ],
)
def test_running_out_of_memory_is_one_line(
    go: Any, monkeypatch: pytest.MonkeyPatch, where: str, micro: int | None, problem: str, settings: tuple[str, ...]
) -> None:
    def exhausted(*_: Any, **__: Any) -> Tensor:
        return torch.empty(1 << 60)

    monkeypatch.setattr(training, where, exhausted)
    with pytest.raises(InsufficientMemoryError) as error:
        go(train__micro_batch_size=micro)
    assert (str(error.value), error.value.settings) == (problem, settings)


def test_an_error_that_is_not_about_memory_is_not_hidden(go: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "batch_at", lambda *_, **__: (torch.zeros(4, 16).long(), torch.full((4, 16), 99)))
    with pytest.raises((RuntimeError, IndexError), match=r"out of bounds|out of range"):
        go()


def test_a_run_folder_that_cannot_be_written_is_one_line(go: Any) -> None:
    run, _ = go()
    (run / "metrics.jsonl").unlink()
    (run / "metrics.jsonl").mkdir()
    with pytest.raises(UserError, match=r"metrics.jsonl is not a regular file"):
        go(resume=True, train__steps=24)


# --- the cost of going on ----------------------------------------------------------------------------


def test_resuming_late_costs_no_more_than_resuming_early(go: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is replayed: a batch is drawn for each step that is still to come, and for no other."""
    drawn: list[int] = []
    batch_at = training.batch_at

    def counted(tokens: Any, context: int, batch_size: int, seed: int, step: int) -> Any:
        drawn.append(step)
        return batch_at(tokens, context, batch_size, seed, step)

    seconds = {}
    for start in (10, 1_000_000):
        run, _ = go(f"from{start}", train__steps=1)
        loaded = load_checkpoint(run, "last")
        loaded.metadata.state.step = start
        metadata = loaded.metadata.model_copy(update={"step": start})
        arrays = (loaded.weights, load_optimizer(loaded))
        save_checkpoint(run, loaded.config, loaded.tokenizer, metadata, *arrays)
        (run / "metrics.jsonl").write_text(
            "".join(
                json.dumps({"step": step, "time": 1.0, "loss/train": 2.0}) + "\n" for step in range(10, start + 1, 10)
            )
        )
        with monkeypatch.context() as patch:
            patch.setattr(training, "batch_at", counted)
            patch.setattr(Training, "_check_memory", lambda self: None)
            drawn.clear()
            began = time.perf_counter()
            _, outcome = go(f"from{start}", resume=True, train__steps=start + 2)
            seconds[start] = time.perf_counter() - began
        assert drawn == [start, start + 1]
        assert outcome.state.step == start + 2
    assert seconds[1_000_000] < seconds[10] + 1


def test_what_memory_is_still_to_be_taken_follows_from_what_was_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that was stopped before its first update has no averages yet."""
    loop, taken = Training(make_config(), tmp_path, make_data()), []
    monkeypatch.setattr(training, "check_batch", lambda config, device, fixed, *rest: taken.append(fixed))
    loop.saved_step = 0
    loop._check_memory()
    for parameter in loop.model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    loop.optimizer.step(0.0)
    loop._check_memory()
    weights = sum(parameter.nbytes for parameter in loop.model.parameters())
    assert taken == [3 * weights, weights]


# --- the same with the fast ways and without ------------------------------------------------------------


def losses_of_steps(tmp_path: Path, **changes: Any) -> list[float]:
    """The losses of a short run that learns, by step."""
    config = make_config(train__steps=80, train__batch_size=16, model__context=80, model__n_embd=32, **changes)
    loop = Training(config, tmp_path, make_data())
    losses = []
    for _ in range(80):
        before = loop.state.loss_sum
        loop.step()
        losses.append(loop.state.loss_sum - before)
    assert losses[-1] < 0.7 * losses[0]
    return losses


@pytest.mark.parametrize("family", ["classic", "modern"])
def test_in_float32_the_fast_kernels_give_the_same_curve(family: str, tmp_path: Path) -> None:
    ours, torchs = (
        losses_of_steps(tmp_path, model__family=family, runtime__kernels=name, model__dropout=0.0)
        for name in ("cpu", "torch")
    )
    assert ours != torchs
    assert ours[:5] == pytest.approx(torchs[:5], abs=1e-4)  # later a difference in the last bits has grown
    assert ours == pytest.approx(torchs, abs=0.1)
    assert statistics.fmean(ours[-20:]) == pytest.approx(statistics.fmean(torchs[-20:]), abs=0.02)


@pytest.mark.parametrize("family", ["classic", "modern"])
def test_with_dropout_and_in_bfloat16_they_give_it_within_the_noise_of_seeds(family: str, tmp_path: Path) -> None:
    """Other masks and other roundings, but no other mean: by pairs of runs from the same weights and batches."""
    common = {"model__family": family, "model__dropout": 0.2}
    differences = []
    for seed in range(4):
        fast = losses_of_steps(tmp_path, runtime__dtype="bfloat16", runtime__kernels="cpu", train__seed=seed, **common)
        plain = losses_of_steps(tmp_path, runtime__kernels="torch", train__seed=seed, **common)
        differences.append(statistics.fmean(fast[-20:]) - statistics.fmean(plain[-20:]))
    error = statistics.stdev(differences) / len(differences) ** 0.5
    assert abs(statistics.fmean(differences)) < max(4 * error, 0.02)


def test_training_does_not_import_the_compiler_that_it_does_not_use(tmp_path: Path) -> None:
    """It takes torch nearly a second, and much in torch imports it unasked."""
    text = tmp_path / "text.txt"
    text.write_text("to be or not to be " * 20)
    code = (
        "import sys; from minigpt.cli.main import app; app(['train', 'text.txt', '-s', 'train.steps=2', '-s', "
        "'runtime.compile=false'], standalone_mode=False); sys.exit('torch._dynamo' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
