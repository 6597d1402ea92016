"""Patches to the batches and the loss."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minigpt.config.resolve import dotted, flatten, resolve
from minigpt.training.learner import make_learner
from minigpt.training.loop import Training


def use_loss(run: Any, loss: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Replace the loss of a run, compiled or not."""
    run.learner.loss = run.learner.mean_loss = loss


def change_batch(run: Any, change: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> None:
    """Make a run compute its loss on `change(x, y)`."""
    mean_loss = run.learner.mean_loss
    use_loss(run, lambda x, y: mean_loss(*change(x, y)))


def random_windows(run: Any, argument: Any) -> None:
    """Sample windows at random positions, with replacement, instead of shuffled epochs."""
    tokens, context = run.data.train, run.config.model.context

    def change(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        starts = torch.randint(len(tokens) - context, (len(x), 1)).numpy()
        windows = torch.from_numpy(tokens[starts + np.arange(context + 1)].astype(np.int64))  # (B, T + 1)
        return windows[:, :-1], windows[:, 1:]

    change_batch(run, change)


def sequence_length_warmup(run: Any, stages: list[list[float]]) -> None:
    """Split sequences into shorter parts at first. `stages` lists [end as a fraction of the run, parts] in order."""

    def change(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        progress = run.state.step / run.steps
        parts = next((int(parts) for share, parts in stages if progress < share), 1)
        return x.reshape(len(x) * parts, -1), y.reshape(len(y) * parts, -1)

    change_batch(run, change)


def batch_size_warmup(run: Any, stages: list[list[float]]) -> None:
    """Use part of each batch at first. `stages` lists [end as a fraction of the run, part] in order."""
    batch_size, whole_step = run.config.train.batch_size, run.step

    def kept(sequences: int) -> int:
        progress = run.state.step / run.steps
        return max(1, round(sequences * next((part for share, part in stages if progress < share), 1.0)))

    def step() -> None:
        dropped = batch_size - kept(batch_size)
        whole_step()
        run.state.tokens_seen -= dropped * run.config.model.context

    run.step = step
    change_batch(run, lambda x, y: (x[: kept(len(x))], y[: kept(len(y))]))


def input_noise(run: Any, share: float) -> None:
    """Replace the fraction `share` of the inputs with random tokens from the batch (Xie et al. 2017)."""

    def change(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        others = x.flatten()[torch.randperm(x.numel())].view_as(x)
        return torch.where(torch.rand(x.shape) < share, others, x), y

    change_batch(run, change)


def multi_token_prediction(run: Any, weight: float) -> None:
    """Also predict the token after the next (Gloeckle et al. 2024). The weight of that loss decays to zero."""
    model, hidden = run.learner.model, list[Tensor]()
    model.ahead = nn.Parameter(model.token_embedding.weight.detach().clone())
    model.norm.register_forward_hook(lambda norm, arguments, x: hidden.__setitem__(slice(None), [x]))

    def loss(x: Tensor, y: Tensor) -> Tensor:
        with run.learner.runtime.autocast():
            logits = model(x)
            ahead = F.linear(hidden[0][:, :-1], model.ahead)  # (B, T - 1, V)
        share: float = weight * (1 - run.state.step / run.steps)
        next_token: Tensor = F.cross_entropy(logits.float().flatten(0, 1), y.flatten())
        return next_token + share * F.cross_entropy(ahead.float().flatten(0, 1), y[:, 1:].flatten())

    use_loss(run, loss)


def trained(run: Any, steps: int, **changes: Any) -> nn.Module:
    """Return a model with another seed than `run` and perhaps other settings, trained for `steps`."""
    train = {"train.steps": steps, "train.seed": run.config.train.seed + 1000}
    config = resolve(("run", flatten(run.config)), ("other", {**train, **changes})).config
    learner = make_learner(config, run.data)
    before = Training(config, run.run, run.data, learner)
    while before.state.step < steps:
        before.step()
    return learner.model.eval()


def teacher(run: Any, argument: dict[str, Any]) -> None:
    """Mix the loss with that against the predictions of a model trained before (Hinton et al. 2015).

    The teacher's `steps` are not timed. `weight` is the share of the teacher in the loss.
    """
    expert, weight = trained(run, argument["steps"]), argument["weight"]
    model, autocast = run.learner.model, run.learner.runtime.autocast

    def loss(x: Tensor, y: Tensor) -> Tensor:
        with torch.no_grad(), autocast():
            expected = expert(x).float().softmax(-1)  # (B, T, V)
        with autocast():
            logits = model(x).float()
        own, taught = (F.cross_entropy(logits.flatten(0, 1), targets.flatten(0, 1)) for targets in (y, expected))
        mixed: Tensor = (1 - weight) * own + weight * taught
        return mixed

    use_loss(run, loss)


def second_model(run: Any, argument: dict[str, Any]) -> None:
    """Average the predictions with those of a second model, trained before without being timed.

    The argument has the `steps` of the second model, and perhaps other `settings`.
    """
    second = trained(run, argument["steps"], **dotted(argument.get("settings"), "settings"))

    def average(model: nn.Module, arguments: tuple[Tensor, ...], logits: Tensor) -> Tensor:
        if model.training:
            return logits
        both = torch.stack((logits, second(*arguments))).float().log_softmax(-1)  # (2, B, T, V)
        return both.logsumexp(0)

    run.learner.model.register_forward_hook(average)


PATCHES = (
    teacher,
    second_model,
    random_windows,
    sequence_length_warmup,
    batch_size_warmup,
    input_noise,
    multi_token_prediction,
)
