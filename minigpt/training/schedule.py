"""The duration of a run, the time it has taken, and its learning rate schedule."""

import math
import time

from minigpt.config.schema import OptimConfig, RunConfig

LEAST_EVALUATIONS, MOST_EVALUATIONS, EVALUATION_SHARE = 5, 20, 0.05
"""Bounds of `train.eval_every: auto`: the number of evaluations and, with lower priority, their share of the time."""

FRAME_BYTES, FRAME_SHARE, FRAME_FLOPS = 64e6, 0.01, 1e11
"""Limits of the frames of a run: bytes, and a share of the time that the run would take at this number of FLOP/s."""
FRAME_SECONDS, FRAME_SPEED = 0.01, 200e6
"""The time to write a frame: seconds, and bytes per second."""


def run_steps(config: RunConfig, train_tokens: int) -> int:
    """Return the duration of a run on `train_tokens` tokens, in steps."""
    train = config.train
    if train.epochs is not None:  # counts all tokens; an epoch of `batch_at` skips up to two windows
        return math.ceil(train.epochs * train_tokens / config.tokens_per_step)
    assert train.steps is not None, "`resolve` sets steps or epochs"
    return train.steps


def eval_steps(config: RunConfig, steps: int, validation_tokens: int) -> int:
    """Return the number of steps between evaluations of a run. A longer run never has a smaller number.

    `train.eval_every: auto` is 1, 2 or 5 times a power of ten, at most `steps`. Evaluating a token takes about a third
    of the time of training on it.
    """
    if config.train.eval_every != "auto":
        return config.train.eval_every
    affordable = validation_tokens / (3 * EVALUATION_SHARE * config.tokens_per_step)
    target = min(max(affordable, steps / MOST_EVALUATIONS), steps / LEAST_EVALUATIONS)
    round_numbers = (digit * int(10**power) for power in range(13) for digit in (1, 2, 5))
    return min(steps, next(number for number in round_numbers if number >= target))


def frame_steps(config: RunConfig, steps: int, parameters: int, flops_per_token: int) -> set[int]:
    """Return the steps at which a run keeps a frame: its weights, to look at later.

    With the end of the run, they are `train.frames` steps, evenly spaced in the square root of the step, because most
    is learned early. Large models keep fewer, within FRAME_BYTES, as do short runs, within FRAME_SHARE of their
    time at FRAME_FLOPS. The steps do not depend on measured time, so a resumed run keeps the same frames.
    """
    size = 2 * parameters
    seconds = steps * config.tokens_per_step * flops_per_token / FRAME_FLOPS
    affordable = FRAME_SHARE * seconds / (FRAME_SECONDS + size / FRAME_SPEED)
    count = int(min(config.train.frames - 1, FRAME_BYTES / size, affordable))
    return {round(steps * (i / count) ** 2) for i in range(count)} - {steps}


class Clock:
    """Seconds of a run: `total` over all its sessions, `session` in this session."""

    def __init__(self, before: float) -> None:
        self.before = before
        self.restart()

    def restart(self) -> None:
        """Start this session now: do not count what came before, such as compiling."""
        self.began = time.perf_counter()
        self.evaluating = 0.0

    @property
    def session(self) -> float:
        return time.perf_counter() - self.began

    @property
    def total(self) -> float:
        return self.before + self.session

    @property
    def training(self) -> float:
        """Seconds of this session without its evaluations."""
        return self.session - self.evaluating


def lr_factor(progress: float, config: OptimConfig) -> float:
    """Return the learning rate at `progress` (0 to 1 of the run) as a fraction of its peak.

    The learning rate rises linearly during `warmup`, then falls to `min_lr`:

    - "cosine": along half a cosine (Loshchilov and Hutter 2017, https://arxiv.org/abs/1608.03983)
    - "linear": linearly
    - "wsd" (warmup, stable, decay; Hu et al. 2024, https://arxiv.org/abs/2404.06395): linearly during the last `decay`
      of the run
    - "constant": not at all
    """
    if progress < config.warmup:
        return progress / config.warmup
    if config.schedule == "constant":
        return 1.0
    decay = config.decay if config.schedule == "wsd" else 1 - config.warmup
    decayed = max(0.0, 1 - (1 - progress) / decay)  # 0 at the peak, 1 at the end
    if config.schedule == "cosine":
        decayed = (1 - math.cos(math.pi * decayed)) / 2
    return 1 - (1 - config.min_lr) * decayed
