"""File locations: packaged resources, the cache, and the layout of a run.

runs/NAME/
  config.yaml  environment.jsonl  metrics.jsonl  log.txt
  tensorboard/                               train/ and validation/
  checkpoints/
    step-00000500/
  frames/                                    like checkpoints, in 16 bits, with an empty optimizer.safetensors
    step-00000033/
"""

import errno
import os
from pathlib import Path

import platformdirs

from minigpt.errors import UserError, reason

RUNS = Path("runs")
CHECKPOINTS, FRAMES, LOCK = "checkpoints", "frames", ".lock"
METRICS, LOG, TENSORBOARD = "metrics.jsonl", "log.txt", "tensorboard"
RUN_FILES = {"config.yaml", "environment.jsonl", METRICS, LOG, TENSORBOARD, CHECKPOINTS, FRAMES, LOCK}
"""The files and folders that training writes into a run folder."""


def names_in(folder: Path) -> list[str]:
    """Return the names in a folder. Return [] if there is no such folder. Raise OSError if it cannot be read."""
    try:
        return os.listdir(folder)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.EINVAL):
            raise
    return []


def is_run(folder: Path) -> bool:
    """Return whether `folder` is a run folder. Raises OSError if it cannot be read."""
    names = set(names_in(folder))
    checkpoints = names_in(folder / CHECKPOINTS) if CHECKPOINTS in names else []
    return {"config.yaml", "environment.jsonl"} <= names or any(name.startswith("step-") for name in checkpoints)


def run_of(checkpoint: Path) -> Path | None:
    """Return the run folder of a checkpoint or frame, or None if `checkpoint` is outside a run."""
    path = checkpoint.absolute()
    return path.parents[1] if path.parent.name in (CHECKPOINTS, FRAMES) else None


def containing_run(file: Path) -> Path | None:
    """Return the run that `file` belongs to, or None. Only the files that training writes belong to a run."""
    real = Path(os.path.realpath(file))
    return next((at for at in real.parents if real.relative_to(at).parts[0] in RUN_FILES and is_run(at)), None)


def resource_path(*parts: str) -> Path:
    """Return the path of a packaged file or folder, such as `resource_path("configs")`. The path need not exist.

    A wheel has these files inside the package; a checkout has them next to it.
    """
    package = Path(__file__).parent
    packaged = package.joinpath("shipped", *parts)
    return packaged if packaged.exists() else package.parent.joinpath(*parts)


def cache_folder() -> Path:
    """Return the folder for downloads and tokens: $MINIGPT_CACHE, or one in the user's cache. It may not exist."""
    try:
        chosen = os.environ.get("MINIGPT_CACHE") or platformdirs.user_cache_path("minigpt", appauthor=False)
        return Path(chosen).expanduser().absolute()
    except RuntimeError as error:  # this user has no home, as in some containers
        raise UserError(f"no folder for the cache: {reason(error)}; set MINIGPT_CACHE to a folder") from error
