"""The length of a run, the time it has taken, and its learning rate schedule."""

import math
import time
from dataclasses import dataclass

from minigpt.config.schema import OptimConfig, RunConfig

LEAST_EVALUATIONS, MOST_EVALUATIONS, EVALUATION_SHARE = 5, 20, 0.05
"""Bounds of `train.eval_every: auto`: the number of evaluations and, with lower priority, their share of the time."""


@dataclass(frozen=True)
class RunLength:
    """The length of a run in steps, or in seconds if the configuration gives minutes."""

    steps: int | None
    seconds: float

    @classmethod
    def of(cls, config: RunConfig, train_tokens: int) -> "RunLength":
        """Return the length that `config` gives a run on so many training tokens."""
        train = config.train
        if train.minutes is not None:
            return cls(None, 60 * train.minutes)
        if train.epochs is not None:  # counts all tokens; an epoch of `batch_at` skips up to two windows
            return cls(math.ceil(train.epochs * train_tokens / (train.batch_size * config.model.context)), 0.0)
        return cls(train.steps, 0.0)

    def work(self, flops_per_step: float) -> dict[str, float]:
        """Return the length as `choose_runtime` needs it, which decides whether to compile."""
        return {"flops": flops_per_step * (self.steps or 0), "seconds": self.seconds}

    @property
    def total(self) -> float:
        """The length, in `unit`s."""
        return self.seconds if self.steps is None else self.steps

    @property
    def unit(self) -> str:
        return "second" if self.steps is None else "step"

    def position(self, step: int, seconds: float) -> float:
        """Return where the run is, in `unit`s."""
        return seconds if self.steps is None else step

    def is_reached(self, step: int, seconds: float) -> bool:
        """Return whether the run is complete."""
        return self.position(step, seconds) >= self.total

    def progress(self, step: int, seconds: float) -> float:
        """Return the completed fraction of the run. If the length is in steps, use the middle of the next step."""
        half = 0.0 if self.steps is None else 0.5
        return min(1.0, (self.position(step, seconds) + half) / self.total)

    def eval_steps(self, tokens_per_step: int, validation_tokens: int) -> int | None:
        """Return the steps between evaluations for `train.eval_every: auto`: 1, 2 or 5 times a power of ten.

        Return None if the length is in seconds. Evaluating a token takes about a third of the time of training on it.
        """
        if self.steps is None:
            return None
        affordable = 3 * EVALUATION_SHARE * self.steps * tokens_per_step / validation_tokens
        target = self.steps / min(max(affordable, LEAST_EVALUATIONS), MOST_EVALUATIONS)
        round_numbers = (digit * int(10**power) for power in range(13) for digit in (1, 2, 5))
        return min(self.steps, next(number for number in round_numbers if number >= target))

    def eval_seconds(self, last_evaluation: float) -> float:
        """Return the seconds of training between evaluations, for a length in seconds."""
        pause = max(self.seconds / MOST_EVALUATIONS, last_evaluation / EVALUATION_SHARE)
        return min(pause, self.seconds / LEAST_EVALUATIONS)


class Clock:
    """Seconds of training: `total` over all processes of the run, `session` in this one."""

    def __init__(self, before: float) -> None:
        self.before = before
        self.last_evaluation = 0.0
        """Duration of the last evaluation."""
        self.restart()

    def restart(self) -> None:
        """Start this session now: do not count what came before, such as compiling."""
        self.began = time.perf_counter()
        self.evaluating = self.evaluated_at = 0.0

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

    def count_evaluation(self, seconds: float) -> None:
        """Record the duration of the evaluation that has just ended."""
        self.evaluating += seconds
        self.last_evaluation, self.evaluated_at = seconds, self.training


def lr_factor(progress: float, config: OptimConfig) -> float:
    """Return the learning rate at `progress` (0 to 1 of the run) as a fraction of its peak.

    The rate rises linearly during `warmup`, then falls to `min_lr`:

    - "cosine": along half a cosine (Loshchilov and Hutter 2017, https://arxiv.org/abs/1608.03983)
    - "linear": linearly
    - "wsd" (warmup, stable, decay): linearly during the last `decay` of the run (Hu et al. 2024,
      https://arxiv.org/abs/2404.06395)
    - "constant": at its peak
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
