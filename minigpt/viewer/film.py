"""Load and choose the moments of a run that the page shows as a film, and the losses under it."""

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from torch import Tensor

from minigpt.errors import UserError
from minigpt.interpret.comparison import read_log
from minigpt.paths import FRAMES
from minigpt.storage.checkpoint import Checkpoint, read_checkpoint
from minigpt.storage.runs import step_folder
from minigpt.viewer.packing_weights import Array, packed_size

Weights = Mapping[str, Array]
MOST_MOMENTS, MOST_LOADED = 12, 24
"""The most moments that the page shows, and the most from which they are chosen."""
MOST_BYTES = 15_000_000
"""The most that the weights of a page with a film take, in base64. A page has at most 16 MB."""
POINTS = 120
"""The most points of the curve of the loss."""
Log = Callable[[str], None] | None
"""Receives a line for each moment that is left out of the film. None: raise its error, because the user named it."""


@contextmanager
def leave_out(step: int, log: Log) -> Iterator[None]:
    """Leave a moment out of the film if the block raises UserError."""
    try:
        yield
    except UserError as error:
        if log is None:
            raise
        log(f"step {step:,} is left out of the film: {error}")


def load_moments(run: Path, opened: Checkpoint, steps: Iterable[int], log: Log = None) -> list[Checkpoint]:
    """Load the weights of some steps of the run of `opened`, which may train meanwhile."""
    moments = []
    for step in steps:
        frame = step_folder(run, step, FRAMES)  # training never prunes it, but may prune the checkpoint of this step
        folder = frame if os.path.lexists(frame) else step_folder(run, step)
        with leave_out(step, log):
            moments.append(opened if step == opened.metadata.step else read_checkpoint(folder, opened))
    return moments


def most_moments(opened: Weights, others: Sequence[Weights]) -> int:
    """Return the number of moments of a model that a page has room for, with the opened moment and beside other models.

    Below 2, there is no film.
    """
    taken = sum(packed_size(weights) for weights in (opened, *others)) * 4 / 3
    return min(MOST_MOMENTS, 1 + int((MOST_BYTES - taken) / (packed_size(opened) * 4 / 3)))


def choose_moments(chances: Sequence[Tensor], limit: int, opened: int) -> list[int]:
    """Return the indices of at most `limit` moments, so that chances change little between one and the next.

    Changes count by their fourth power: one letter that is learned counts more than noise at all letters. The first,
    the last and the opened moment are chosen always. If they are too many, only the opened moment is chosen.

    Args:
        chances: The probability (T) that each moment, in order, gives to the letters of the text.
        limit: The number of moments to choose.
        opened: The index of the moment that the page opens with.
    """
    chosen, fixed = list(range(len(chances))), {0, opened, len(chances) - 1}
    if limit < len(fixed):
        return [opened]
    while len(chosen) > limit:
        inner = [k for k in range(1, len(chosen) - 1) if chosen[k] not in fixed]
        gaps = {k: (chances[chosen[k - 1]] - chances[chosen[k + 1]]).pow(4).sum().item() for k in inner}
        chosen.pop(min(inner, key=lambda k: gaps[k]))
    return chosen


def thin(steps: Iterable[int], points: int) -> list[int]:
    """Return at most `points` of the steps, with the last, evenly spaced in the square root of the step, in order."""
    ordered = sorted(steps)
    if len(ordered) <= points:
        return ordered
    return list({round((points - 1) * math.sqrt(step / ordered[-1])): step for step in ordered}.values())


def loss_curve(run: Path) -> list[tuple[int, float]]:
    """Return at most POINTS steps and training losses of a run, evenly spaced in the square root of the step.

    At step 0, the loss is that of validation.
    """
    losses: dict[int, float] = {}
    for entry in read_log(run):
        with suppress(ValueError, TypeError, KeyError, OverflowError):
            step = int(entry["step"])
            loss = float(entry["loss/train" if step else "loss/validation"])
            if step >= 0 and math.isfinite(loss):
                losses[step] = loss
    return [(step, round(losses[step], 4)) for step in thin(losses, POINTS)]
