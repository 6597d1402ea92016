"""How long a run is, and the learning rate along it."""

import math

from minigpt.config.schema import OptimConfig, RunConfig


def lr_factor(progress: float, config: OptimConfig) -> float:
    """Return the learning rate at `progress` (0 to 1 of the run) as a share of its peak.

    It rises in a line over `warmup`, then falls to `min_lr`: along half a cosine (Loshchilov and Hutter
    2017), in a line, or, with "wsd", in a line over the last `decay` of the run only (Hu et al. 2024). With "constant"
    it stays at its peak.
    """
    if progress < config.warmup:
        return progress / config.warmup
    if config.schedule == "constant":
        return 1.0
    fall = config.decay if config.schedule == "wsd" else 1 - config.warmup
    fallen = max(0.0, 1 - (1 - progress) / fall)  # 0 at the peak, 1 at the end
    if config.schedule == "cosine":
        fallen = (1 - math.cos(math.pi * fallen)) / 2
    return 1 - (1 - config.min_lr) * fallen


def run_steps(config: RunConfig, train_tokens: int) -> int | None:
    """Return the length of the run in steps, or None when it is given in minutes."""
    train = config.train
    if train.epochs is not None:
        return math.ceil(train.epochs * train_tokens / (train.batch_size * config.model.context))
    return train.steps
