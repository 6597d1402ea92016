"""What fits into memory, and the error if something does not."""

import os
import re
import subprocess
import sys
from dataclasses import replace
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
from minigpt.model.memory import (
    HEAP,
    Memory,
    as_memory_error,
    backward_bytes,
    check_memory,
    free_memory_bytes,
    training_memory,
)
from minigpt.model.size import count_parameters
from minigpt.world import available_cores


def test_free_memory_is_known_on_linux() -> None:
    free = free_memory_bytes("cpu")
    assert (free is not None) is (sys.platform == "linux")
    assert free is None or 1_000_000 < free < 1 << 44
    assert free_memory_bytes("mps") is None


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
@pytest.mark.parametrize("group", ["", "a/", "a/b/"])
@pytest.mark.parametrize(
    ("limit", "free", "quota", "cores"),
    [
        ("4000000", 3_800_000, "200000 100000", 2),
        ("max", 8_000_000, "max 100000", 8),
        ("9000000000", 8_000_000, "10000000 100000", 8),
        (None, 8_000_000, "150000 100000", 2),
    ],
)
def test_a_container_can_have_less_free_memory_and_fewer_cores(
    group: str, limit: str | None, free: int, quota: str, cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only anonymous memory counts as used: the system reclaims cached files."""
    files = {"/proc/meminfo": "MemTotal: 9000 kB\nMemAvailable:   7812 kB\nBuffers: 1 kB\n"}
    files |= {"/proc/self/cgroup": "1:cpu:/x\n0::/a/b\n", f"/sys/fs/cgroup/{group}cpu.max": f"{quota}\n"}
    if limit:
        files |= {
            f"/sys/fs/cgroup/{group}memory.max": f"{limit}\n",
            f"/sys/fs/cgroup/{group}memory.stat": "anon 200000\nfile 3500000\n",
        }

    def read_text(path: Path, **_: Any) -> str:
        if str(path) not in files:
            raise FileNotFoundError(path)
        return files[str(path)]

    monkeypatch.setattr(Path, "read_text", read_text)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert free_memory_bytes("cpu") == pytest.approx(free, rel=1e-3)
    assert available_cores() == cores


@pytest.mark.parametrize(("world", "here", "share"), [("4", "2", 2), ("1", "2", 1), ("4", None, 1), (None, "2", 1)])
def test_processes_of_a_machine_share_its_memory(
    world: str | None, here: str | None, share: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda: 8_000)
    for name, value in (("WORLD_SIZE", world), ("LOCAL_WORLD_SIZE", here)):
        monkeypatch.setenv(name, value) if value else monkeypatch.delenv(name, raising=False)
    assert free_memory_bytes("cpu") == 8_000 // share


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
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


def needs(each: int = 0, processes: int = 1, device: str = "cuda", **changes: Any) -> Memory:
    config = make_config(**{"train__batch_size": 16, **changes})
    return training_memory(config, 13, device, each, processes=processes)


def test_a_process_holds_the_copies_of_the_weights_and_the_activations_of_a_micro_batch() -> None:
    copy = 4 * count_parameters(make_config().model, 13)
    assert needs(1000) == Memory(0, copy, copy, 2 * copy, 0, 16_000)
    assert needs(1000, train__micro_batch_size=4).activations == 4000
    assert needs(1000, device="cpu").activations == 16 * int(1000 * HEAP)
    assert needs(1000).total == 4 * copy + 16_000
    gradients = {shards: needs(train__shards=shards).gradients // copy for shards in (1, 2, 4, 16)}
    assert gradients == {1: 1, 2: 2, 4: 3, 16: 5}, "one for each level of the tree, and the newest"
    assert needs(processes=4, train__shards=4) == replace(needs(), exchange=copy), "each has one shard"


@pytest.mark.parametrize(
    ("micro", "free", "settings"),
    [(16, 7, ("train.micro_batch_size=4",)), (16, 3, ("train.micro_batch_size=1",)), (16, 1, ()), (4, 7, None)],
)
def test_what_does_not_fit_is_refused_with_a_micro_batch_that_does(
    micro: int, free: int, settings: tuple[str, ...] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each sequence takes 1 MB, and 1 MB is needed otherwise; four fifths of the free memory are filled."""
    monkeypatch.setattr(memory, "free_memory_bytes", lambda device: free * 1_000_000)
    config = make_config(train__batch_size=16, train__micro_batch_size=micro)
    needed = Memory(0, 500_000, 500_000, 0, 0, micro * 1_000_000)
    if settings is None:
        check_memory("training", needed, "cpu", config)
        return
    with pytest.raises(InsufficientMemoryError, match=r"^training needs about 0\.0 GB; 0\.0 GB are free$") as error:
        check_memory("training", needed, "cpu", config)
    assert error.value.settings == settings


def test_memory_that_is_just_free_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    needed = needs(1000)
    for free in (needed.total, None):
        monkeypatch.setattr(memory, "free_memory_bytes", lambda device, free=free: free)
        check_memory("training", needed, "cpu", make_config())
    monkeypatch.setattr(memory, "free_memory_bytes", lambda device: needed.total - 1)
    with pytest.raises(InsufficientMemoryError):
        check_memory("training", needed, "cuda", make_config())
    assert re.match(
        "training needs about .* are free: memory may run out", check_memory("training", needed, "cpu", make_config())
    ), "the part that is not in tensors is only an estimate"
    with pytest.raises(InsufficientMemoryError) as error:  # a model without a batch
        check_memory("training", replace(needed, activations=0, weights=1 << 40), "cpu", make_config())
    assert error.value.settings == ()


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
