"""Choose the moments of a run that the page shows as a film, and the losses under it."""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from torch import Tensor

from minigpt.storage.records import read_log
from minigpt.viewer.packing_weights import Array, packed_size

MOST_MOMENTS = 12
MOST_BYTES = 15_000_000
"""The most that the weights of a film take in the page, in base64. A page has at most 16 MB."""
POINTS = 120
"""The most points of the curve of the loss."""


def most_moments(weights: Mapping[str, Array]) -> int:
    """Return the number of moments of a model that a page has room for. Below 2, there is no film."""
    return min(MOST_MOMENTS, int(MOST_BYTES / (packed_size(weights, exact=False) * 4 / 3)))


def choose_moments(chances: Sequence[Tensor], limit: int, opened: int) -> list[int]:
    """Return the indices of at most `limit` moments, so that chances change little between one and the next.

    Changes count by their fourth power: one letter that is learned counts more than noise at all letters.

    Args:
        chances: The probability (T) that each moment, in order, gives to the letters of the text.
        limit: The number of moments to choose, at least 2. The first and the last are chosen always.
        opened: The index of the moment that the page opens with, which is chosen too.
    """
    chosen = list(range(len(chances)))
    while len(chosen) > limit:
        inner = [k for k in range(1, len(chosen) - 1) if chosen[k] != opened]
        if not inner:
            break
        gaps = {k: (chances[chosen[k - 1]] - chances[chosen[k + 1]]).pow(4).sum().item() for k in inner}
        chosen.pop(min(inner, key=lambda k: gaps[k]))
    return chosen


def loss_curve(run: Path) -> list[tuple[int, float]]:
    """Return at most POINTS steps and training losses of a run, evenly spaced in the square root of the step.

    At step 0, the loss is that of validation.
    """
    losses: dict[int, float] = {}
    for entry in read_log(run):
        with suppress(ValueError, TypeError, KeyError, OverflowError):
            step = int(entry["step"])
            loss = float(entry["loss/train" if step else "loss/validation"])
            if math.isfinite(loss):
                losses[step] = loss
    last = max(losses, default=1)
    thinned = {round(POINTS * math.sqrt(step / last)): (step, round(losses[step], 4)) for step in sorted(losses)}
    return list(thinned.values())
