"""What every test gets: no reach into the user's own files, and no time limit that a busy machine breaks."""

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import numpy as np
import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent

# In CI the same examples are drawn each time, so that a red run is the change's doing; elsewhere new ones are tried.
hypothesis.settings.register_profile("minigpt", deadline=None, derandomize=bool(os.environ.get("CI")))
hypothesis.settings.load_profile("minigpt")

# A shell starts what runs in its background deaf to Ctrl-C, and nohup deaf to a closed terminal; so would be all that
# the tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGHUP"):
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(scope="session", autouse=True)
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINIGPT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def seeded() -> None:
    """What a test draws does not depend on which others ran before it."""
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)


@pytest.fixture(scope="session")
def shakespeare() -> Path:
    """Tiny Shakespeare, which is measured with but not part of the repository."""
    named = os.environ.get("MINIGPT_SHAKESPEARE")
    path = Path(named) if named else ROOT / "../shared/data/tinyshakespeare.txt"
    if not path.is_file():
        pytest.skip("Tiny Shakespeare is not here; MINIGPT_SHAKESPEARE can name the file")
    return path.resolve()
