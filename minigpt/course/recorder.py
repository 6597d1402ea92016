"""Check the reader's `train` and `train_gpt` with a model that records what it is trained on.

The text is the ids 0, 1, 2, ..., so an id is also a position in the text, and the id of the next letter is one more.

Letters in shapes: B batch, T time, V vocabulary.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minigpt.course.comparison import Mistake

V, STEPS, CONTEXT, BATCH = 40, 30, 4, 4


class Recorder(nn.Module):
    """A table with a logit for each pair of letters. It records every backward pass, and maps (B, T) to (B, T, V)."""

    def __init__(self) -> None:
        super().__init__()
        self.context = CONTEXT
        self.table = nn.Parameter(torch.zeros(V, V))
        self.steps: list[tuple[Tensor, Tensor, Tensor]] = []
        """Ids (B, T), logits (B, T, V) and their gradients (B, T, V)."""
        self.accumulates = False
        """Whether a backward pass has added its gradient to an earlier one."""

    def forward(self, ids: Tensor) -> Tensor:
        logits = self.table[ids]
        if logits.requires_grad:
            values = logits.detach().cpu()
            logits.register_hook(lambda gradient: self._record(ids.cpu(), values, gradient.cpu()))
        return logits

    def _record(self, ids: Tensor, logits: Tensor, gradient: Tensor) -> None:
        self.accumulates |= self.table.grad is not None and bool(self.table.grad.any())
        self.steps.append((ids, logits, gradient))


def check_training(train: Callable[..., Any]) -> None:
    """Train a recorder. Raises Mistake if the training or the loss that it returns is wrong."""
    recorder = Recorder()
    returned = train(recorder, torch.arange(V), steps=STEPS, context=CONTEXT, batch=BATCH)
    if len(recorder.steps) != STEPS:
        raise Mistake(f"calls backward {len(recorder.steps)} times, not {STEPS} times")
    losses = [_check_step(*step) for step in recorder.steps]
    starts = torch.stack([ids[:, 0] for ids, _, _ in recorder.steps])  # (steps, B)
    if len(starts.unique()) <= BATCH:
        raise Mistake("trains on the same windows at every step")
    if (starts == starts[:, :1]).all():
        raise Mistake("trains on a batch of equal windows")
    if recorder.accumulates:
        raise Mistake("adds the gradients of all steps: zero_grad, or p.grad = None, is missing")
    if not recorder.table.any():
        raise Mistake("leaves the parameters as they were: is optimizer.step missing, or zero_grad after backward?")
    if not isinstance(returned, float | int | Tensor):
        raise Mistake(f"returns a {type(returned).__name__}, expected the loss of the last step")
    result = torch.as_tensor(returned).detach().mean().item()
    if not min(losses) - 0.1 <= result <= max(losses) + 0.1:  # the mean of several steps is fine
        raise Mistake(f"returns {result:.4f}, but the loss of the last step is {losses[-1]:.4f}")


def _check_step(ids: Tensor, logits: Tensor, gradient: Tensor) -> float:
    """Return the loss of a step. Raises Mistake if its windows, its loss or its targets are wrong."""
    if ids.ndim != 2 or ids.size(0) != BATCH or ids.size(1) not in (CONTEXT, CONTEXT + 1):
        raise Mistake(f"gives the model ids of shape {tuple(ids.shape)}, expected {(BATCH, CONTEXT)}")
    if not (ids.diff(dim=1) == 1).all():
        raise Mistake("gives the model letters that do not follow each other in the text")
    ids, logits, gradient = (part[:, :CONTEXT] for part in (ids, logits, gradient))  # without the last target
    learned = gradient.any(-1)  # (B, T)
    if not learned.all():
        at = learned.any(0).nonzero().flatten().tolist()
        raise Mistake(f"learns from {int(learned.sum())} of {learned.numel()} letters in a batch, at positions {at}")
    targets = gradient.argmin(-1)  # softmax - 1 is negative only at the target
    if (targets == ids).all():
        raise Mistake("learns to predict the letter that the model sees, not the next one")
    if not (targets == ids + 1).all():
        raise Mistake("learns to predict other letters than the next ones")
    return F.cross_entropy(logits.flatten(0, 1), (ids + 1).flatten()).item()


def check_rate(train: Callable[..., Any]) -> None:
    """Train a recorder with learning rate 0. Raises Mistake if its table changes."""
    recorder = Recorder()
    train(recorder, torch.arange(V), steps=1, context=CONTEXT, batch=BATCH, rate=0.0)
    if recorder.table.any():
        raise Mistake("changes the parameters: the rate is ignored")
