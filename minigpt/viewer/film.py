"""Choose the moments of a run that the page shows as a film, and the losses under it."""

import json
import math
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from torch import Tensor

from minigpt.errors import UserError
from minigpt.files import open_within
from minigpt.interpret.comparison import LONGEST_LINE

MOST_MOMENTS = 12
MOST_BYTES = 15_000_000
"""The most that the weights of a film take in the page, in base64. A page has at most 16 MB."""
POINTS = 120
"""The most points of the curve of the loss."""


def choose_moments(probabilities: Sequence[Tensor], limit: int, opened: int) -> list[int]:
    """Return the indices of at most `limit` moments, so that predictions change little between one and the next.

    Args:
        probabilities: The predictions (T, V) for the same text at each moment, in order.
        limit: The number of moments to choose, at least 2. The first and the last are chosen always.
        opened: The index of the moment that the page opens with, which is chosen too.
    """

    def change(a: int, b: int) -> float:  # the mean total variation distance
        return (probabilities[a] - probabilities[b]).abs().sum(-1).mean().item() / 2

    chosen = list(range(len(probabilities)))
    while len(chosen) > limit:
        inner = [k for k in range(1, len(chosen) - 1) if chosen[k] != opened]
        if not inner:
            break
        chosen.pop(min(inner, key=lambda k: change(chosen[k - 1], chosen[k + 1])))
    return chosen


def loss_curve(run: Path) -> list[tuple[int, float]]:
    """Return at most POINTS steps and training losses of a run, evenly spaced in the square root of the step."""
    losses: dict[int, float] = {}
    with suppress(UserError, OSError), open_within(run / "metrics.jsonl", run) as file:
        while line := file.readline(LONGEST_LINE):
            with suppress(ValueError, RecursionError, TypeError, KeyError):
                entry = json.loads(line)
                step, loss = int(entry["step"]), float(entry["loss/train"])
                if math.isfinite(loss):
                    losses[step] = loss
    last = max(losses, default=1)
    thinned = {round(POINTS * math.sqrt(step / last)): (step, round(losses[step], 4)) for step in sorted(losses)}
    return list(thinned.values())
