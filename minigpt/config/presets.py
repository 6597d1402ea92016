"""Presets: shipped ones by name, user files by path, and one fitted to the size of a text."""

from math import inf
from pathlib import Path

from minigpt.config import yaml as plain_yaml
from minigpt.config.resolve import PRESET, ConfigSource, dotted, fields, show
from minigpt.errors import ConfigError, did_you_mean, escape, reason
from minigpt.paths import resource_path


def presets() -> dict[str, str]:
    """Return the description of each shipped preset by name."""
    found = {}
    for path in sorted(resource_path("configs").glob("*.yaml"), key=lambda path: path.stem):
        lines = path.read_text(encoding="utf-8").splitlines()
        found[path.stem] = next(line[2:] for line in lines if line.startswith("# ") and "$schema" not in line)
    return found


def read_preset(name: str, *, only_shipped: bool = False) -> tuple[ConfigSource, ...]:
    """Read a YAML file by its path, or a shipped preset by its name. The file wins, unless `only_shipped`.

    If the file has a key `preset`, the values of that shipped preset come first.
    """
    try:
        is_shipped = name in presets() and (only_shipped or not Path(name).is_file())
        path = resource_path("configs", f"{name}.yaml") if is_shipped else Path(name)
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise ConfigError(f"no preset or file is named '{escape(name)}'{_known(name)}") from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read '{escape(name)}': {reason(error)}") from error
    values = dotted(plain_yaml.parse(text, name), name)
    base = values.pop("preset", None)
    if base is not None and not (isinstance(base, str) and base in presets()):
        raise ConfigError(f"{escape(name)}: no preset is named {show(base)}{_known(str(base))}")
    bases = read_preset(base, only_shipped=True) if base else ()
    return *bases, (f"{PRESET if is_shipped else 'file '}{name}", values)


def is_config(name: str) -> bool:
    """Return whether `name` is a YAML file with settings or, if no such file exists, a shipped preset."""
    if not Path(name).exists():
        return name in presets()
    if not name.endswith((".yaml", ".yml")):
        return False
    try:
        values = [key for _, source in read_preset(name) for key in source]
    except ConfigError:
        return False
    return bool({*values} & {*fields()})


def _known(name: str) -> str:
    return did_you_mean(name, presets()) or f"; presets: {', '.join(presets())}"


KEYS = (
    "model.n_layer", "model.n_head", "model.n_embd", "model.context", "train.batch_size", "train.steps",
    "model.dropout", "optim.weight_decay", "optim.momentum",
)  # fmt: skip
SMALL = (
    (9_000, (2, 2, 64, 32, 32, 250, 0.2, 1.0, 0.95)),
    (60_000, (4, 2, 128, 64, 16, 500, 0.2, 1.0, 0.95)),
    (170_000, (4, 2, 128, 128, 16, 750, 0.0, 1.0, 0.9)),
    (600_000, (4, 2, 128, 128, 16, 1500, 0.0, 1.0, 0.9)),
)
"""Limits in characters, each with the values of `KEYS` for texts below that limit."""
CPU = (*SMALL, (inf, (4, 4, 128, 256, 16, 1300, 0.0, 0.3, 0.9)))
"""docs/project/lab/small-and-large-texts.md has the measurements. The GPU values for larger texts are not measured."""
GPU = (
    *SMALL,
    (5_000_000, (6, 6, 384, 256, 64, 3000, 0.2, 1.0, 0.95)),
    (inf, (6, 6, 384, 256, 64, 10_000, 0.0, 0.1, 0.95)),
)
ENOUGH_VALIDATION = 50_000
"""Number of characters needed to measure the validation loss to two digits."""

MIN_PATIENCE = 200
"""Minimum number of steps without a new best validation loss before a fitted run stops early."""


def fit(characters: int, gpu: bool) -> ConfigSource:
    """Return a preset for a text of this many characters that gives a first result within minutes.

    All fitted presets use early stopping. Small texts get more weight decay, and the smallest also get dropout.
    """
    values = dict(zip(KEYS, next(row for limit, row in (GPU if gpu else CPU) if characters < limit), strict=True))
    steps = int(values["train.steps"])
    return f"fitted to {characters:,} characters on a {'GPU' if gpu else 'CPU'}", {
        **values,
        "data.val_fraction": min(0.1, float(f"{ENOUGH_VALIDATION / max(1, characters):.1g}")),
        "train.eval_every": steps // 10,
        "train.save_every": max(50, steps // 5),
        "train.patience": max(4, MIN_PATIENCE // (steps // 10)),
    }
