"""Where the files that come with minigpt lie: the presets and the registry of downloads."""

from __future__ import annotations

from pathlib import Path


def shipped(*parts: str) -> Path:
    """The path of a file or folder that comes with minigpt, such as `shipped("configs")`.

    A wheel carries these inside the package, a checkout has them beside it. The path need not exist.
    """
    here = Path(__file__).parent
    packed = here.joinpath("shipped", *parts)
    return packed if packed.exists() else here.parent.joinpath(*parts)
