"""Settings that fit a text and an amount of computation.

They do not depend on the machine. docs/project/lab/small-and-large-texts.md has the measurements.
"""

import math
from typing import Any, NamedTuple

from minigpt.config.schema import ModelConfig
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


TINY, SMALL, MEDIUM = 9_000, 60_000, 600_000
"""Characters from which a text has another shape."""
SHAPES = (
    (0, 0, Shape(2, 2, 64, 32, 32)),
    (0, TINY, Shape(4, 2, 128, 64, 16)),
    (0, SMALL, Shape(2, 4, 128, 64, 32)),
    (6e12, SMALL, Shape(4, 4, 128, 128, 16)),
    (1.2e13, MEDIUM, Shape(4, 4, 128, 256, 16)),
    (5e13, MEDIUM, Shape(6, 4, 192, 256, 16)),
    (3e14, MEDIUM, Shape(6, 4, 256, 256, 16)),
    (2e15, MEDIUM, Shape(6, 6, 384, 256, 64)),
)
"""The least FLOP of a run and the least characters of its text for each shape. The last is for GPUs, not measured."""
WORK = {"cpu": 8e12, "gpu": 3e15}
"""FLOP of a run whose length the user leaves to minigpt: one or two minutes on two cores. On a GPU, not measured."""
MANY_EPOCHS = 20
"""Epochs from which a run needs more regularization."""
LONGER = 5
"""How many times as long the run takes that `forecast` is about."""
ENOUGH_VALIDATION = 50_000
"""Number of characters needed to measure the validation loss to two digits."""


def choose_shape(characters: int, work: float) -> Shape:
    """Return the shape for a text of so many characters and a run of so many FLOP."""
    return [shape for least, fewest, shape in SHAPES if work >= least and characters >= fewest][-1]


def most_steps(characters: int, tokens_per_step: int) -> int:
    """Return the steps after which no measured loss fell further. The small networks of tiny texts need more epochs."""
    return max(1, (60 if characters < TINY else 30) * characters // tokens_per_step)


def settings(characters: int, shape: Shape, steps: int) -> dict[str, Any]:
    """Return the settings of a run. It stops early if validation no longer improves.

    Small texts need more weight decay. The smallest, and many epochs, also need dropout.
    """
    is_small, has_many = characters < SMALL, steps * shape.tokens > MANY_EPOCHS * characters
    return {
        **{f"model.{key}": value for key, value in shape._asdict().items() if key != "batch_size"},
        "model.dropout": 0.2 if is_small else 0.1 if has_many else 0.0,
        "optim.weight_decay": 1.0 if characters < MEDIUM else 0.5 if has_many else 0.3,
        "optim.momentum": 0.95 if is_small or steps >= 2000 else 0.9,
        "data.val_fraction": min(0.1, float(f"{ENOUGH_VALIDATION / max(1, characters):.1g}")),
        "train.batch_size": shape.batch_size,
        "train.steps": steps,
        "train.save_every": max(50, steps // 5),
        "train.patience": 4,
    }


def forecast(loss: float, characters: int, tokens_per_step: int, steps: int) -> float | None:
    """Return the loss in nats that a run of `LONGER` times the time would reach. None if more steps would not help.

    Five times the time lowered the loss of three texts by 0.08 to 0.19, and by less after more epochs.
    """
    if steps >= most_steps(characters, tokens_per_step):
        return None
    epochs = steps * tokens_per_step / characters
    return loss - 0.14 + 0.075 * math.log10(max(0.1, epochs))  # not measured below 0.1 epochs


def fit(characters: int, vocab_size: int, work: float) -> dict[str, Any]:
    """Return the settings for a text of so many characters and a run of about so many FLOP."""
    shape = choose_shape(characters, work)
    steps = min(most_steps(characters, shape.tokens), max(1, int(work / shape.flops(vocab_size))))
    return settings(characters, shape, steps)
