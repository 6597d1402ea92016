"""Errors outside of training when another process ends."""

import pytest
import torch.distributed as dist

from minigpt.errors import UserError
from minigpt.training import parallel

CLOSED = "[gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:4001"


@pytest.fixture(autouse=True)
def joined(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that this is one of two processes, and that the other has ended."""

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError(CLOSED)

    monkeypatch.setenv("WORLD_SIZE", "2")
    for name, result in {
        "init_process_group": None,
        "new_group": None,
        "get_rank": 0,
        "get_world_size": 2,
        "destroy_process_group": None,
    }.items():
        monkeypatch.setattr(dist, name, lambda *_, result=result, **__: result)
    monkeypatch.setattr(dist, "all_gather_object", fail)


def test_a_process_that_ends_before_or_after_training_is_an_error_of_one_line() -> None:
    with pytest.raises(UserError, match="stopped responding; start all processes again"), parallel.join() as processes:
        processes.gather(None)
    with pytest.raises(UserError, match="lost contact"), parallel.join():
        pass  # the end of the block waits for the others


def test_other_errors_keep_their_traceback() -> None:
    with pytest.raises(RuntimeError, match="a bug"), parallel.join():
        raise RuntimeError("a bug")
