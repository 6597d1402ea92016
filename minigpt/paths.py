"""Where the files that come with minigpt lie: the presets and the registry of downloads."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from minigpt.errors import UserError


def resource_path(*parts: str) -> Path:
    """The path of a file or folder that comes with minigpt, such as `resource_path("configs")`.

    A wheel carries these inside the package, a checkout has them beside it. The path need not exist.
    """
    here = Path(__file__).parent
    packed = here.joinpath("shipped", *parts)
    return packed if packed.exists() else here.parent.joinpath(*parts)


def cache_folder() -> Path:
    """The folder for what can be made again: $MINIGPT_CACHE, else `minigpt` in the platform's user cache.

    The folder is not created. UserError where there is no home folder to put it in.
    """
    chosen = os.environ.get("MINIGPT_CACHE")
    try:
        if chosen:
            return Path(chosen).expanduser().absolute()
        return _user_cache() / "minigpt"
    except RuntimeError as error:
        raise UserError("no home folder was found for the cache; set MINIGPT_CACHE to a folder") from error


def _user_cache() -> Path:
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # The XDG specification says that a relative path is to be ignored.
    return named if named.is_absolute() else Path.home() / ".cache"
