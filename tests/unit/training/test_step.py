"""One update: batch, gradient, clipping, and what happens when it is not finite."""

import copy
from collections.abc import Callable
from dataclasses import astuple, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from small_runs import disturb, make_config, new_training
from torch import Tensor

from minigpt.errors import TrainingError
from minigpt.training import optim
from minigpt.training.loop import Training

pytestmark = pytest.mark.usefixtures("torch_settings")


@pytest.mark.parametrize("name", ["adamw", "normuon"])
def test_accumulation_gives_the_update_of_the_large_batch(tmp_path: Path, name: str) -> None:
    runs: list[tuple[Training, list[Tensor]]] = []
    for micro in (None, 4, 1):
        config = make_config(optim__name=name, train__batch_size=8, train__micro_batch_size=micro)
        training, sizes = new_training(config, tmp_path), []
        learner = training.learner
        learner.use_loss(lambda x, y, own=learner, sizes=sizes: (sizes.append(len(x)), own.mean_loss(x, y))[1])
        training.step()
        runs.append((training, [p.grad.clone() for p in learner.model.parameters() if p.grad is not None]))
        training.step()
        assert sizes == [micro or 8] * (2 * 8 // (micro or 8))
    (whole, gradients), *parts = runs
    for part, found in parts:
        torch.testing.assert_close(found, gradients, rtol=1e-4, atol=1e-7)
        assert part.state.loss_sum == pytest.approx(whole.state.loss_sum, rel=1e-5)
        for ours, theirs in zip(part.learner.model.parameters(), whole.learner.model.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_muon_multiplies_in_the_precision_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    """A processor without bfloat16 takes four times as long in it."""
    orthogonalize, dtypes = optim.orthogonalize, []
    monkeypatch.setattr(optim, "orthogonalize", lambda x, how: (dtypes.append(x.dtype), orthogonalize(x, how))[1])
    new_training(make_config(runtime__dtype=dtype, optim__name="normuon"), tmp_path).step()
    assert set(dtypes) == {getattr(torch, dtype)}


@pytest.mark.parametrize("share", [0.01, 0.9, 0.999, 1.001, 0.0], ids=str)
def test_clipping_scales_gradients_above_the_limit_only(share: float, tmp_path: Path) -> None:
    """The limit is a share of the norm of the first step; 0 turns clipping off."""
    free = new_training(make_config(optim__grad_clip=0.0), tmp_path)
    free.step()
    clipped = new_training(make_config(optim__grad_clip=share * free.gradient_norm), tmp_path)
    clipped.step()
    gradients = [[p.grad for p in run.learner.model.parameters() if p.grad is not None] for run in (clipped, free)]
    norm = torch.linalg.vector_norm(torch.stack([gradient.norm() for gradient in gradients[0]])).item()
    if 0 < share < 1:
        assert norm == pytest.approx(share * free.gradient_norm, rel=1e-4)
    else:
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(*gradients, strict=True))


@pytest.mark.parametrize("unread", [1, 100])
@pytest.mark.parametrize(
    ("kind", "problem"),
    [("nan", "the loss is nan"), ("inf", "the loss is inf"), ("gradient", "the gradient is not finite")],
)
def test_a_step_that_is_not_finite_is_named_before_anything_uses_its_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, problem: str, unread: int
) -> None:
    """A CPU reads each step. A GPU reads steps together, so later steps also follow the bad one."""
    disturb(monkeypatch, {3: kind})
    training = new_training(make_config(), tmp_path)
    training.most_unread = unread
    healthy = new_training(make_config(), tmp_path)
    for _ in range(2):
        training.step()
        healthy.step()
    healthy.read()

    def train_and_save() -> None:
        for _ in range(4):
            training.step()
        training.save()

    with pytest.raises(TrainingError, match=rf"step 3: {problem} \(learning rate .*float32\)") as error:
        train_and_save()
    assert error.value.saved_step is None
    assert not list(tmp_path.iterdir())
    state = training.state
    assert (state.step, state.tokens_seen) == (3, 3 * training.config.tokens_per_step)
    assert (state.loss_sum, state.loss_count) == (healthy.state.loss_sum, 2)


@pytest.mark.parametrize("use", [Training.log, Training.evaluate, Training.save])
def test_steps_read_together_are_as_if_read_alone(tmp_path: Path, use: Callable[[Training], object]) -> None:
    states = []
    for unread in (1, 100):
        (tmp_path / str(unread)).mkdir()
        training = new_training(make_config(), tmp_path / str(unread))
        training.most_unread = unread
        for _ in range(5):
            training.step()
        use(training)
        states.append(replace(training.state, seconds=0.0))
    assert states[0] == states[1]


def test_a_snapshot_is_a_copy() -> None:
    training = new_training(make_config())
    assert training.learner.snapshot().optimizer == {}, "there is no state before the first step"
    training.step()
    first = training.learner.snapshot()
    before = copy.deepcopy(first)
    training.step()
    second = training.learner.snapshot()
    for kept, now, later in zip(astuple(first), astuple(before), astuple(second), strict=True):
        assert kept.keys() == later.keys()
        assert all(np.array_equal(kept[name], now[name]) for name in kept)
        assert any(not np.array_equal(kept[name], later[name]) for name in kept)
    assert training.learner.snapshot(with_optimizer=False).optimizer == {}
