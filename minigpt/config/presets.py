"""Presets: the shipped ones by name, a user's own file, and one fitted to a text."""

import os
from dataclasses import dataclass
from math import inf

from minigpt.config import yaml as plain_yaml
from minigpt.config.resolve import Layer, dotted
from minigpt.errors import UserError, did_you_mean, escape, reason
from minigpt.paths import resource_path


def presets() -> dict[str, str]:
    """Return the shipped presets: name to one-line description."""
    found = {}
    for path in sorted(resource_path("configs").glob("*.yaml"), key=lambda path: path.stem):
        lines = path.read_text(encoding="utf-8").splitlines()
        comments = [line.lstrip("# ") for line in lines if line.startswith("#") and "$schema" not in line]
        found[path.stem] = comments[0] if comments else ""
    return found


def shipped_layer(name: str) -> Layer:
    """Read a shipped preset, whatever files there are by its name."""
    _, layer = read_layer(str(resource_path("configs", f"{name}.yaml")))
    return f"preset {name}", layer


def read_layer(name: str) -> Layer:
    """Read a preset by its name, or a YAML file by its path.

    Raises UserError when there is neither, or when the file is no YAML of sections.
    """
    is_preset = name in presets() and not os.path.isfile(name)
    label = f"{'preset' if is_preset else 'file'} {name}"
    try:
        with open(resource_path("configs", f"{name}.yaml") if is_preset else name, encoding="utf-8-sig") as file:
            text = file.read(plain_yaml.LIMIT + 1)  # longer than that is refused
    except FileNotFoundError as error:
        hint = did_you_mean(name, presets()) or f"; presets: {', '.join(presets())}"
        raise UserError(f"no preset and no file is called '{escape(name)}'{hint}") from error
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {escape(name)}: {reason(error)}") from error
    return label, dotted(plain_yaml.parse(text, name), name)


# --- presets fitted to a text --------------------------------------------------------------------------


@dataclass(frozen=True)
class Shape:
    """A model and a run that suit texts of fewer than `limit` characters."""

    limit: float
    n_layer: int
    n_head: int
    n_embd: int
    context: int
    batch_size: int
    steps: int
    dropout: float = 0.0
    weight_decay: float = 0.1
    momentum: float = 0.95


SMALL_SHAPES = (
    Shape(9_000, n_layer=2, n_head=2, n_embd=64, context=32, batch_size=32, steps=250, dropout=0.2, weight_decay=1.0),
    Shape(60_000, n_layer=4, n_head=2, n_embd=128, context=64, batch_size=16, steps=500, dropout=0.2, weight_decay=1.0),
    Shape(
        600_000, n_layer=4, n_head=2, n_embd=128, context=128, batch_size=16, steps=1500,
        weight_decay=1.0, momentum=0.9,
    ),
)  # fmt: skip
"""Measured, as is the one below for all else on a CPU: docs/experiments.md."""
CPU_SHAPES = (
    *SMALL_SHAPES,
    Shape(
        inf, n_layer=4, n_head=4, n_embd=128, context=256, batch_size=16, steps=1300,
        weight_decay=0.3, momentum=0.9,
    ),
)  # fmt: skip
GPU_SHAPES = (
    *SMALL_SHAPES,
    Shape(
        5_000_000, n_layer=6, n_head=6, n_embd=384, context=256, batch_size=64, steps=3000,
        dropout=0.2, weight_decay=1.0,
    ),
    Shape(inf, n_layer=6, n_head=6, n_embd=384, context=256, batch_size=64, steps=10_000),
)  # fmt: skip
ENOUGH_VALIDATION = 50_000
"""Characters after which a validation loss has settled to the second digit, and more only cost time."""


def fit(characters: int, gpu: bool) -> Layer:
    """Choose model and run for a text of this many characters, so that a first result comes within minutes.

    All stop early, small texts get more weight decay than the default, the smallest dropout as well. On a GPU, shapes
    for texts that are not small follow from what was found on a CPU: they have not been measured.
    """
    shape = next(shape for shape in (GPU_SHAPES if gpu else CPU_SHAPES) if characters < shape.limit)
    return f"fitted to {characters:,} characters on a {'GPU' if gpu else 'CPU'}", {
        "data.val_fraction": min(0.1, float(f"{ENOUGH_VALIDATION / max(1, characters):.1g}")),
        "model.n_layer": shape.n_layer,
        "model.n_head": shape.n_head,
        "model.n_embd": shape.n_embd,
        "model.context": shape.context,
        "model.dropout": shape.dropout,
        "optim.momentum": shape.momentum,
        "optim.weight_decay": shape.weight_decay,
        "train.batch_size": shape.batch_size,
        "train.steps": shape.steps,
        "train.eval_every": max(50, shape.steps // 10),
        "train.save_every": max(50, shape.steps // 5),
        "train.patience": 4,
    }
