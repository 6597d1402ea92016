"""Settings by name: presets, and YAML files by path."""

import os
import re
from pathlib import Path

from minigpt.config.resolve import ConfigSource, FileSettings, fields, show
from minigpt.config.yaml import LIMIT
from minigpt.errors import ConfigError, did_you_mean, escape, reason
from minigpt.paths import resource_path

PRESET = "preset"
"""The start of the name of a source that is a shipped preset."""


def presets() -> dict[str, str]:
    """Return the description of each shipped preset by name."""
    titles = {}
    for path in sorted(resource_path("configs").glob("*.yaml"), key=lambda path: path.stem):
        lines = path.read_text(encoding="utf-8").splitlines()
        title = next(line[2:] for line in lines if line.startswith("# ") and "$schema" not in line)
        titles[path.stem] = re.sub("<!--.*?-->", "", title)  # the names of recorded numbers: scripts/marks.py
    return titles


def read_preset(name: str, *, only_shipped: bool = False) -> tuple[ConfigSource, ...]:
    """Read a YAML file by its path, or a shipped preset by its name. A file has priority, unless `only_shipped`.

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
    values = FileSettings(text, name)
    base = values.pop("preset", None)
    if base is not None and not (isinstance(base, str) and base in presets()):
        raise ConfigError(f"{escape(name)}: no preset is named {show(base)}{_known(str(base))}")
    bases = read_preset(base, only_shipped=True) if base else ()
    return *bases, (f"{PRESET if is_shipped else 'file'} {name}", values)


def has_settings(name: str) -> bool:
    """Return whether a file has settings of minigpt."""
    try:
        if os.path.getsize(name) > LIMIT:
            return False
        return any(not fields().keys().isdisjoint(values) for _, values in read_preset(name))
    except (ConfigError, OSError):
        return False


def _known(name: str) -> str:
    return did_you_mean(name, presets()) or f"; presets: {', '.join(presets())}"
