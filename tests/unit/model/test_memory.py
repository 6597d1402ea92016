"""What fits into memory, and the error if something does not."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import environment
from small_models import random_model, some_ids
from small_runs import make_config
from torch import Tensor

from minigpt.errors import InsufficientMemoryError
from minigpt.model import memory
from minigpt.model.gpt import use_kernels
from minigpt.model.kernels import CPU, TORCH, Kernels
from minigpt.model.memory import as_memory_error, backward_bytes, check_batch, check_model, free_memory_bytes


def test_free_memory_is_known_on_linux() -> None:
    free = free_memory_bytes("cpu")
    assert (free is not None) is (sys.platform == "linux")
    assert free is None or 1_000_000 < free < 1 << 44
    assert free_memory_bytes("mps") is None


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc and /sys")
@pytest.mark.parametrize(
    ("limit", "free"), [("4000000", 3_800_000), ("max", 8_000_000), ("9000000000", 8_000_000), (None, 8_000_000)]
)
def test_a_container_can_have_less_free_memory(limit: str | None, free: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only anonymous memory counts as used: the system reclaims cached files."""
    files = {"/proc/meminfo": "MemTotal: 9000 kB\nMemAvailable:   7812 kB\nBuffers: 1 kB\n"}
    if limit:
        files |= {
            "/sys/fs/cgroup/memory.max": f"{limit}\n",
            "/sys/fs/cgroup/memory.stat": "anon 200000\nfile 3500000\n",
        }

    def read_text(path: Path, **_: Any) -> str:
        if str(path) not in files:
            raise FileNotFoundError(path)
        return files[str(path)]

    monkeypatch.setattr(Path, "read_text", read_text)
    assert free_memory_bytes("cpu") == pytest.approx(free, rel=1e-3)


@pytest.mark.parametrize(("world", "here", "share"), [("4", "2", 2), ("1", "2", 1), ("4", None, 1), (None, "2", 1)])
def test_processes_of_a_machine_share_its_memory(
    world: str | None, here: str | None, share: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda: 8_000)
    for name, value in (("WORLD_SIZE", world), ("LOCAL_WORLD_SIZE", here)):
        monkeypatch.setenv(name, value) if value else monkeypatch.delenv(name, raising=False)
    assert free_memory_bytes("cpu") == 8_000 // share


@pytest.mark.skipif(sys.platform != "linux", reason="not reported on this system")
def test_peak_memory_includes_what_was_freed() -> None:
    """In a process of its own, because this one may have used more before."""
    program = (
        "from minigpt.model.memory import peak_memory; peaks = [peak_memory()]\n"
        "held = b'.' * (1 << 26); peaks.append(peak_memory())\n"
        "del held; print(*peaks, peak_memory())"
    )
    done = subprocess.check_output([sys.executable, "-c", program], env=environment())
    before, holding, after = (int(peak) for peak in done.split())
    assert before > 1_000_000
    for peak in (holding, after):
        assert peak - before == pytest.approx(1 << 26, rel=0.1)


def test_what_a_backward_pass_keeps_is_counted_once_and_without_the_weights() -> None:
    weight, x = torch.ones(100, 100, requires_grad=True), torch.ones(10, 100)

    def compute() -> Tensor:
        h = x @ weight  # keeps x and weight
        return (h.exp() + h.sin()).sum()  # exp keeps its result, sin its input

    assert backward_bytes(compute, [weight]) == 4 * (10 * 100 + 2 * 10 * 100)


@pytest.mark.parametrize("kernels", [CPU, TORCH], ids=["cpu", "torch"])
def test_measuring_frees_what_training_would_keep(kernels: Kernels) -> None:
    """The count must not depend on that: a freed tensor's address is used again."""
    model, ids = random_model("modern", n_layer=3, context=256), some_ids(1, 256)
    use_kernels(model, kernels)
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        logits = model(ids)
    own = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    expected = sum(size for address, size in kept.items() if address not in own)
    assert backward_bytes(lambda: model(ids), model.parameters()) == expected > logits.nbytes


def test_a_model_must_fit_with_its_averages(monkeypatch: pytest.MonkeyPatch) -> None:
    parameters = 1000
    monkeypatch.setattr(memory, "free_memory_bytes", lambda device: 4 * 4 * parameters)
    check_model(parameters, "cpu", has_average=False)
    with pytest.raises(InsufficientMemoryError, match=r"^training a model of 1,000 parameters needs about"):
        check_model(parameters, "cpu", has_average=True)
    monkeypatch.setattr(memory, "free_memory_bytes", lambda device: 4 * 4 * parameters - 1)
    with pytest.raises(InsufficientMemoryError):
        check_model(parameters, "cpu", has_average=False)


@pytest.mark.parametrize(
    ("micro", "free", "settings"),
    [(16, 7, ("train.micro_batch_size=4",)), (16, 3, ("train.micro_batch_size=1",)), (16, 1, ()), (4, 7, None)],
)
def test_a_batch_that_does_not_fit_is_refused_with_one_that_does(
    micro: int, free: int, settings: tuple[str, ...] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each sequence takes 1 MB, and 1 MB is needed otherwise; four fifths of the free memory are filled."""
    monkeypatch.setattr(memory, "free_memory_bytes", lambda device: free * 1_000_000)
    config = make_config(train__batch_size=16, train__micro_batch_size=micro)
    if settings is None:
        check_batch(config, "cpu", 1_000_000, 1_000_000)
        return
    with pytest.raises(InsufficientMemoryError, match=r"^training with 16 sequences at once needs") as error:
        check_batch(config, "cpu", 1_000_000, 1_000_000)
    assert error.value.settings == settings


def test_out_of_memory_is_recognized_in_pytorchs_words() -> None:
    with pytest.raises(RuntimeError) as error:
        torch.empty(1 << 60)
    for problem in (error.value, torch.OutOfMemoryError("any"), MemoryError()):
        assert str(as_memory_error(problem)) == "out of memory"
        for micro, smaller in ((12, 6), (6, 3), (3, 1), (1, None)):
            found = as_memory_error(problem, make_config(train__batch_size=12, train__micro_batch_size=micro))
            assert found is not None
            assert found.settings == ((f"train.micro_batch_size={smaller}",) if smaller else ())
    assert as_memory_error(RuntimeError("shapes do not match")) is None
