"""What fits into memory, and what is advised where it does not."""

import sys
from pathlib import Path

import pytest
import torch
from small_runs import make_config

from minigpt.errors import UserError
from minigpt.model import memory as room
from minigpt.model.gpt import GPT
from minigpt.model.kernels import CPU, TORCH, Kernels
from minigpt.model.memory import (
    backward_bytes,
    check_sampling,
    check_training,
    free_memory_bytes,
    is_out_of_memory,
    sequence_bytes,
)


def test_what_is_free_here_is_known_or_not() -> None:
    free = free_memory_bytes("cpu")
    assert (free is not None) is (sys.platform == "linux")
    assert free is None or 1_000_000 < free < 1 << 44
    assert free_memory_bytes("mps") is None


@pytest.mark.skipif(sys.platform != "linux", reason="this system does not say")
def test_of_machine_and_container_the_one_with_less_to_give_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    for in_container, least, most in ((7, 7, 7), (1 << 60, 1_000_000, 1 << 44), (None, 1_000_000, 1 << 44)):
        monkeypatch.setattr(room, "_free_in_container", lambda group, free=in_container: free)
        assert least <= free_memory_bytes("cpu") <= most


def test_what_a_container_gives_back_when_asked_is_free(tmp_path: Path) -> None:
    """After a text of five gigabytes was read, a limit of four is full of files that are no longer needed."""
    assert room._free_in_container(tmp_path) is None
    (tmp_path / "memory.current").write_text("3900\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert room._free_in_container(tmp_path) is None
    (tmp_path / "memory.max").write_text("4000\n")
    assert room._free_in_container(tmp_path) == 100
    (tmp_path / "memory.stat").write_text(
        "anon 200\nfile 3500\ninactive_file 3000\nactive_file 400\nslab_reclaimable 50\n"
    )
    assert room._free_in_container(tmp_path) == 100 + 3450


def test_out_of_memory_is_recognised_in_torchs_own_words() -> None:
    with pytest.raises(RuntimeError) as error:
        torch.empty(1 << 60)
    assert is_out_of_memory(error.value)
    assert is_out_of_memory(torch.OutOfMemoryError("any"))
    assert not is_out_of_memory(RuntimeError("shapes do not match"))


def test_what_a_backward_pass_keeps_is_counted_once_and_without_the_weights() -> None:
    weight = torch.ones(100, 100, requires_grad=True)
    x = torch.ones(10, 100)

    def compute() -> torch.Tensor:
        h = x @ weight  # keeps x and weight
        return (h.exp() + h.sin()).sum()  # exp keeps its result, sin its input

    assert backward_bytes(compute, [weight]) == 4 * (10 * 100 + 2 * 10 * 100)


@pytest.mark.parametrize("kernels", [CPU, TORCH])
def test_what_a_long_sequence_takes_is_told_without_taking_it(
    monkeypatch: pytest.MonkeyPatch, kernels: Kernels
) -> None:
    model = GPT(make_config(model__context=1024, model__n_embd=32).model, 30)
    model.use(kernels)
    weights, asked = list(model.parameters()), []

    def loss(length: int) -> torch.Tensor:
        asked.append(length)
        return model(torch.zeros(1, length, dtype=torch.long)).sum()

    whole = sequence_bytes(loss, weights, 1024)
    monkeypatch.setattr(room, "MEASURED", 256)
    asked.clear()
    assert sequence_bytes(loss, weights, 1024) == pytest.approx(whole, rel=0.01)
    assert max(asked) == 256


def test_where_a_gpu_trains_only_what_a_checkpoint_copies_must_fit_here(monkeypatch: pytest.MonkeyPatch) -> None:
    parameters = 1000
    weights = 4 * parameters
    monkeypatch.setattr(room, "free_memory_bytes", lambda device: weights)
    with pytest.raises(UserError, match=r"a model of 1,000 parameters needs about"):
        check_training(parameters, "cpu", has_average=False)
    monkeypatch.setattr(room, "free_memory_bytes", lambda device: 2 * weights)
    check_training(parameters, "cuda", has_average=False)
    with pytest.raises(UserError):
        check_training(parameters, "cuda", has_average=True)


def test_more_samples_than_fit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = make_config().model
    each = 4 * (2 * shape.n_layer * shape.n_embd * shape.context + 3 * 100)
    monkeypatch.setattr(room, "free_memory_bytes", lambda device: 7 * each)
    check_sampling(shape, 7, 100, "cpu")
    with pytest.raises(UserError, match=r"^8 samples need about 0 GB, 0 GB are free$"):
        check_sampling(shape, 8, 100, "cpu")


def test_what_micro_batches_change_is_said() -> None:
    assert room._same_result(make_config()) == "the same result"
    assert room._same_result(make_config(model__dropout=0.1)) == "the same result, but for the masks of dropout"
