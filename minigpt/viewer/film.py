"""Load and choose the moments of a run that the page shows as a film, and the losses under it."""

import math
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from minigpt.errors import UserError
from minigpt.interpret.comparison import read_points
from minigpt.paths import FRAMES, run_of
from minigpt.storage.checkpoint import Checkpoint, read_checkpoint
from minigpt.storage.runs import saved_steps, step_folder
from minigpt.viewer.packing_weights import Array, packed_size

Weights = Mapping[str, Array]
MOST_MOMENTS, MOST_LOADED = 12, 24
"""The most moments that the page shows, and the most that are spread over the run to choose from."""
MOST_BYTES = 11_250_000
"""The most bytes of packed weights in a page with a film. As base64, they take a third more: 15 MB."""
POINTS = 120
"""The most points of the curve of the loss."""


@dataclass(frozen=True)
class Film:
    """The moments of a run from which the page chooses those that it shows."""

    moments: list[Checkpoint] = field(default_factory=list)
    """Checkpoints and frames, sorted by step, including the opened moment. Empty: there is no film."""
    room: int = MOST_MOMENTS
    """The number of moments that fit into the page."""
    log: Callable[[str], None] | None = None
    """Receives a line for each moment that is left out. None: raise its error, because the user named it."""

    @classmethod
    def load(
        cls,
        opened: Checkpoint,
        others: Sequence[Checkpoint],
        named: Collection[int] | None,
        log: Callable[[str], None],
    ) -> "Film":
        """Load the moments of the run of `opened` at the `named` steps, or else at steps spread over the run.

        The run may still be training. `others` are the other models of the page. `log` receives a line if a run has no
        film, or if an unnamed moment cannot be loaded.
        """
        run, step = run_of(opened.path), opened.metadata.step
        if run is None and named is None:
            return cls()
        if run is None:
            raise UserError("a checkpoint folder has no other steps; name its run")
        room = most_moments(opened.weights, [other.weights for other in others])
        saved = sorted({*saved_steps(run), step})  # `opened` may be quarantined
        if len(saved) == 1:
            more = "training keeps more" if opened.metadata.imported else "train.frames keeps more, in longer runs"
            log(f"no film: the run has the weights of only one step ({more})")
        elif len(saved) > 1 and room < 2:
            log("no film: the weights of another step do not fit into the page")
        if named is not None:
            film, steps = cls(room=room), {*named, step}
            if missing := sorted(steps - {*saved}):
                raise UserError(f"there are no weights of step {missing[0]}; the run has {', '.join(map(str, saved))}")
            if len(steps) > max(1, room):
                problem = f"the page has room for {room} steps, with the opened one, and {len(steps)} are named"
                raise UserError(problem)
        else:
            film = cls(room=room, log=log)
            steps = {saved[0], step, *thin(saved, MOST_LOADED)} if room > 1 else set()
        for at in sorted(steps):
            frame = step_folder(run, at, FRAMES)  # training never prunes it, but may prune the checkpoint of this step
            folder = frame if os.path.lexists(frame) else step_folder(run, at)
            with film.leave_out(at):
                film.moments.append(opened if at == step else read_checkpoint(folder, opened))
        return film

    @contextmanager
    def leave_out(self, step: int) -> Iterator[None]:
        """Leave a moment out of the film if the block raises UserError. Raise it if there is no `log`."""
        try:
            yield
        except UserError as error:
            if self.log is None:
                raise
            self.log(f"step {step:,} is left out of the film: {error}")


def most_moments(opened: Weights, others: Sequence[Weights]) -> int:
    """Return how many moments fit into a page with these models, counting the opened one. Below 2, there is no film."""
    taken = sum(map(packed_size, (opened, *others)))
    return min(MOST_MOMENTS, 1 + int((MOST_BYTES - taken) / packed_size(opened)))


def choose_moments(chances: Sequence[Tensor], limit: int, opened: int) -> list[int]:
    """Return the indices of at most `limit` moments, so that chances change little from each to the next.

    Changes count by their fourth power, so one letter that is learned outweighs noise at all letters. The first, the
    last and the opened moment are chosen if `limit` allows it. Otherwise, only the opened moment is.

    Args:
        chances: The probabilities (T) that each moment gives to the letters of the text, sorted by step.
        limit: The most moments to choose.
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
    """Return at most `points` of the steps, with the last, about evenly spaced in the square root of the step."""
    ordered = sorted(steps)
    if len(ordered) <= points:
        return ordered
    return list({round((points - 1) * math.sqrt(step / ordered[-1])): step for step in ordered}.values())


def loss_curve(run: Path) -> list[tuple[int, float]]:
    """Return at most POINTS steps and training losses of a run, as `thin` chooses them.

    At step 0, the loss is the validation loss.
    """
    losses = {int(step): loss for step, loss in read_points(run, "validation", "step", "loss") if step == 0}
    losses |= {int(step): loss for step, loss in read_points(run, "train", "step", "loss") if step > 0}
    return [(step, round(losses[step], 4)) for step in thin(losses, POINTS)]
