"""Settings that fit a text and an amount of computation.

They do not depend on the machine. docs/project/lab/small-and-large-texts.md has the measurements.
"""

import math
from typing import Any, NamedTuple

from minigpt.config.schema import ModelConfig, OptimConfig
from minigpt.model.size import training_flops


class Shape(NamedTuple):
    """The shape of a model and its batches."""

    n_layer: int
    n_head: int
    n_embd: int
    context: int
    batch_size: int

    @property
    def tokens(self) -> int:
        """Tokens per step."""
        return self.batch_size * self.context

    def flops(self, vocab_size: int) -> int:
        """FLOP per step."""
        model = ModelConfig(n_layer=self.n_layer, n_head=self.n_head, n_embd=self.n_embd, context=self.context)
        return self.tokens * training_flops(model, vocab_size)


TINY, SMALL, MEDIUM, LARGE = 9_000, 60_000, 500_000, 800_000
"""Characters from which a text has another shape."""
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
"""The least FLOP of a run and the least characters of its text for each shape. The last is for GPUs, not measured."""
WORK = {"cpu": 8e12, "gpu": 3e15}
"""FLOP of a run whose length the user leaves to minigpt: one or two minutes on two cores. On a GPU, not measured."""
MANY_EPOCHS = 20
"""Epochs from which a run needs more regularization."""
SPAN = 0.5
"""Epochs of a small text over which weights should average their updates: 1 / (learning rate * weight decay) steps."""
LONGER = 5
"""How many times as long the run takes that `forecast` is about."""
ENOUGH_VALIDATION = 50_000
"""Number of characters needed to measure the validation loss to two digits."""


def choose_shape(characters: int, work: float, shards: int = 1) -> Shape:
    """Return the shape for a text of so many characters and a run of so many FLOP. Shards divide its batches."""
    shape = [shape for least, fewest, shape in SHAPES if work >= least and characters >= fewest][-1]
    return shape._replace(batch_size=math.ceil(shape.batch_size / shards) * shards)


def most_steps(characters: int, tokens_per_step: int) -> int:
    """Return the steps after which no measured loss fell further. The small networks of tiny texts need more epochs."""
    return max(1, (60 if characters < TINY else 30) * characters // tokens_per_step)


def settings(characters: int, shape: Shape, steps: int) -> dict[str, Any]:
    """Return the settings of a run. It stops early if validation no longer improves.

    Weight decay is for this shape and the default learning rate of Muon.
    """
    is_small, has_many = characters < SMALL, steps * shape.tokens > MANY_EPOCHS * characters
    weight_decay = 0.5 if has_many else 0.3
    if characters < LARGE:
        steps_of_span = SPAN * characters / shape.tokens
        weight_decay = min(1.0, max(0.3, round(1 / (OptimConfig().muon_lr * steps_of_span), 1)))
    return {
        **{f"model.{key}": value for key, value in shape._asdict().items() if key != "batch_size"},
        "model.dropout": 0.2 if is_small else 0.1 if has_many else 0.0,
        "optim.weight_decay": weight_decay,
        "optim.momentum": 0.95 if is_small or steps >= 2000 else 0.9,
        "data.val_fraction": min(0.1, float(f"{ENOUGH_VALIDATION / characters:.1g}")),
        "train.batch_size": shape.batch_size,
        "train.steps": steps,
        "train.save_every": max(50, steps // 5),
        "train.patience": 4,
    }


def forecast(loss: float, characters: int, tokens_per_step: int, steps: int) -> float | None:
    """Return the loss in nats that a run of `LONGER` times the time would reach. None if not known.

    Five times the time lowered the loss of three texts by 0.10 to 0.19, and by less after more epochs.
    """
    if steps >= most_steps(characters, tokens_per_step):
        return None
    epochs = steps * tokens_per_step / characters
    reached = loss - 0.148 + 0.053 * math.log10(max(0.1, epochs))  # not measured below 0.1 epochs
    return reached if reached > 0 else None


def fit(characters: int, vocab_size: int, work: float, shards: int = 1) -> dict[str, Any]:
    """Return the settings for a text of so many characters and a run of about so many FLOP."""
    shape = choose_shape(characters, work, shards)
    steps = min(most_steps(characters, shape.tokens), max(1, int(work / shape.flops(vocab_size))))
    return settings(characters, shape, steps)
