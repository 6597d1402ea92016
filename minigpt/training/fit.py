"""Settings that fit a text and an amount of computation.

They do not depend on the machine. docs/project/lab/small-and-large-texts.md has the measurements, where every token is
a character.
"""

import math
from typing import Any, NamedTuple

from minigpt.config.resolve import ConfigSource, multiple, resolve, width_unit
from minigpt.config.schema import NORMUON_RATE, RunConfig
from minigpt.model.size import training_flops
from minigpt.training.schedule import run_steps

FITTED = "fitted to the text"
"""The name of the source of fitted settings."""


class Shape(NamedTuple):
    """The shape of a model and its batches."""

    n_layer: int
    n_head: int
    n_embd: int
    context: int
    batch_size: int


TINY, SMALL, MEDIUM, LARGE = 9_000, 60_000, 500_000, 800_000
"""Sizes of a text, in tokens, from which another shape is chosen."""
SHAPES = (
    (0, 0, Shape(2, 2, 64, 32, 32)),
    (0, TINY, Shape(4, 2, 128, 64, 16)),
    (0, SMALL, Shape(2, 4, 128, 64, 32)),
    (6e12, SMALL, Shape(4, 4, 128, 256, 4)),
    (6e12, MEDIUM, Shape(4, 4, 128, 256, 8)),
    (6e12, LARGE, Shape(4, 4, 128, 128, 16)),
    (1.2e13, LARGE, Shape(4, 4, 128, 256, 16)),
    (5e13, MEDIUM, Shape(6, 4, 192, 256, 16)),
    (3e14, MEDIUM, Shape(6, 4, 256, 256, 16)),
    (2e15, MEDIUM, Shape(6, 6, 384, 256, 64)),
)
"""The least FLOP of a run and tokens of its text for each shape. The last, for GPUs, was not compared with others."""
WORK = {"cpu": 8e12, "gpu": 3e15}
"""FLOP of a run whose duration the user leaves to minigpt: minutes on two server cores, about one minute on an H100."""
MANY_EPOCHS = 20
"""Epochs from which a run needs more regularization."""
SPAN = 0.5
"""Epochs of a small text over which weights should average their updates."""
ENOUGH_VALIDATION = 50_000
"""Tokens needed to measure the validation loss to two digits."""


def choose_shape(size: int, work: float) -> Shape:
    """Return the shape for a text of `size` tokens and a run of `work` FLOP."""
    return [shape for least, fewest, shape in SHAPES if work >= least and size >= fewest][-1]


def most_steps(size: int, tokens_per_step: int) -> int:
    """Return after how many steps no measured loss fell. The small networks of tiny texts need more epochs."""
    return max(1, (60 if size < TINY else 30) * size // tokens_per_step)


def fit(size: int, vocab_size: int, work: float, *others: ConfigSource, longest: float = math.inf) -> dict[str, Any]:
    """Return the settings for a text of `size` tokens and a run of about `work` FLOP.

    They match the settings of `others`, which have priority. The text allows a context of at most `longest` tokens.
    """
    shape = choose_shape(size, work)
    chosen: dict[str, Any] = {f"model.{key}": value for key, value in shape._asdict().items() if key != "batch_size"}
    chosen["model.context"] = min(shape.context, longest)

    def resolved(complete: bool = True) -> RunConfig:
        return resolve((FITTED, chosen), *others, complete=complete).config

    incomplete, set_by_others = resolved(complete=False), {key for _, values in others for key in values}
    train, model = incomplete.train, incomplete.model
    if "model.n_head" not in set_by_others:
        fewer = range(1, shape.n_head + 1)
        fitting = [heads for heads in fewer if model.n_embd % width_unit(heads, model.position) == 0]
        chosen["model.n_head"] = max(fitting, default=shape.n_head)
    elif "model.n_embd" not in set_by_others:
        chosen["model.n_embd"] = multiple(shape.n_embd, width_unit(model.n_head, model.position))
    divisor = train.shards * (train.micro_batch_size or 1)
    sequences = shape.batch_size * shape.context / model.context
    chosen["train.batch_size"] = math.ceil(sequences / divisor) * divisor
    config = resolved()
    steps = max(1, int(work / (config.tokens_per_step * training_flops(config.model, vocab_size))))
    chosen["train.steps"] = min(steps, most_steps(size, config.tokens_per_step))
    return chosen | dependent_settings(size, resolved())


def val_fraction(size: int) -> float:
    """Return the validation fraction of a text of `size` tokens."""
    return min(0.1, float(f"{ENOUGH_VALIDATION / size:.1g}"))


def dependent_settings(size: int, config: RunConfig) -> dict[str, Any]:
    """Return the settings that depend on the size of the text in tokens and on other settings of the run.

    Weights average their updates over 1 / (learning rate * weight decay) steps.
    """
    steps = run_steps(config, size)
    is_small, has_many = size < SMALL, steps * config.tokens_per_step > MANY_EPOCHS * size
    weight_decay, rate = 0.5 if has_many else 0.3, NORMUON_RATE
    faster = config.optim.lr / rate if config.optim.name == "normuon" else 1.0
    if size < LARGE:
        span = SPAN * size / config.tokens_per_step
        weight_decay = min(1.0, max(0.3, round(1 / (rate * span), 1)))
    return {
        "model.dropout": 0.2 if is_small else 0.1 if has_many else 0.0,
        "optim.weight_decay": round(weight_decay / max(1.0, faster), 3),
        "optim.momentum": 0.95 if is_small or steps >= 2000 else 0.9,
        "data.val_fraction": val_fraction(size),
        "train.save_every": max(50, steps // 5),
        "train.patience": 4,
    }
