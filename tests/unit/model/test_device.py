"""What choose_runtime decides, what a resumed run keeps, and what configure_torch changes."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from small_runs import make_config, make_data

from minigpt.config.schema import RuntimeConfig
from minigpt.errors import DeviceError
from minigpt.model import device
from minigpt.model.device import Runtime, choose_runtime, configure_torch, pick_device
from minigpt.model.kernels import CPU, TORCH
from minigpt.storage.checkpoint import load_checkpoint
from minigpt.storage.metadata import Environment
from minigpt.training.loop import train
from minigpt.training.parallel import Processes
from minigpt.training.timing import plan_runtime

pytestmark = pytest.mark.usefixtures("torch_settings")


DTYPES = ("float32", "bfloat16")


def config(**changes: Any) -> RuntimeConfig:
    return RuntimeConfig.model_validate({"device": "cpu", **changes})


def environment(**changes: Any) -> Environment:
    return Environment(**{"device": "cpu", "dtype": "float32", "compile": False, "threads": 1, **changes})


@pytest.mark.parametrize(("dtype", "threads", "compile"), [("float32", 1, True), ("bfloat16", 2, False)])
def test_choosing_changes_nothing_and_configuring_does(dtype: str, threads: int, compile: bool) -> None:
    torch.set_num_threads(3 - threads)
    torch.use_deterministic_algorithms(not compile)
    chosen = choose_runtime(config(dtype=dtype, threads=threads, compile=compile))
    assert chosen == Runtime("cpu", dtype, compile, threads, "cpu")
    assert (torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()) == (3 - threads, not compile)
    configure_torch(chosen)
    assert (torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()) == (threads, compile)
    with chosen.autocast():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == chosen.torch_dtype == getattr(torch, dtype)
    cores = device.available_cores()
    where = f"cpu ({threads} thread{'s' if threads > 1 else ''}{f' on {cores} cores' if threads < cores else ''})"
    how = "torch.compile" if compile else "not compiled"
    assert chosen.describe() == f"{where}, {dtype}, cpu kernels, {how}"


def test_a_gpu_computes_deterministically(monkeypatch: pytest.MonkeyPatch, torch_settings: None) -> None:
    """Its attention adds in the order in which threads finish otherwise, so no run could be repeated or resumed."""
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch, "set_float32_matmul_precision", lambda precision: None)
    configure_torch(Runtime("cuda:0", "bfloat16", False, 1))
    assert torch.are_deterministic_algorithms_enabled()


def test_auto_fits_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    dtype = "bfloat16" if device.has_fast_bfloat16("cpu") else "float32"
    torch.set_num_threads(2)
    assert choose_runtime(config()) == Runtime("cpu", dtype, False, 2, "cpu")
    assert choose_runtime(RuntimeConfig()).device == device.available_devices()[0]


def test_kernels_are_named_by_the_settings() -> None:
    assert choose_runtime(config(kernels="torch")).model_kernels is TORCH
    assert choose_runtime(config()).model_kernels is CPU


@pytest.mark.parametrize(
    ("instructions", "vendor", "expected"),
    [
        ("amx_bf16", "GenuineIntel", "bfloat16"),
        ("avx512_bf16", "AuthenticAMD", "bfloat16"),
        ("avx512_bf16", "GenuineIntel", "float32"),  # it takes twice as long
        ("avx2", "AuthenticAMD", "float32"),
    ],
)
def test_bfloat16_is_chosen_by_the_instruction_set(
    instructions: str, vendor: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {instructions: True}, raising=False)
    monkeypatch.setattr(device, "system_table", lambda path: f"vendor_id\t: {vendor}\n")
    assert choose_runtime(config()).dtype == expected


def test_compilation_is_chosen_by_the_work_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "has_compiler", lambda: True)
    limit = device.COMPILE_FROM_FLOP
    chosen = [choose_runtime(config(), flops=flops).compile for flops in (0.0, 0.9 * limit, limit)]
    assert chosen == [False, False, True]
    monkeypatch.setattr(device, "has_compiler", lambda: False)
    assert choose_runtime(config(), flops=limit).compile is False


def test_a_compiler_is_found_on_the_path_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    assert not device.has_compiler()


# --- resuming ----------------------------------------------------------------------------------------


def test_a_resumed_run_keeps_what_auto_chose(monkeypatch: pytest.MonkeyPatch) -> None:
    """A different precision or number of threads would change the result."""
    monkeypatch.setattr(device, "available_cores", lambda: 4)
    saved = environment(dtype="bfloat16", compile=True, threads=3)
    assert choose_runtime(RuntimeConfig(), saved) == Runtime("cpu", "bfloat16", True, 3)
    assert choose_runtime(config(), saved, flops=1.0) == Runtime("cpu", "bfloat16", True, 3)
    assert choose_runtime(config(dtype="float32"), saved) == Runtime("cpu", "float32", True, 3)
    assert choose_runtime(config(compile=False), saved) == Runtime("cpu", "bfloat16", False, 3)
    assert choose_runtime(config(threads=1), saved) == Runtime("cpu", "bfloat16", True, 1)
    assert choose_runtime(config(), choose_runtime(config(), saved).environment()) == choose_runtime(config(), saved)


def test_a_machine_with_far_fewer_cores_uses_its_own_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(device, "available_cores", lambda: 2)  # taskset, or a container
    assert choose_runtime(config(), environment(threads=4)).threads == 4
    torch.set_num_threads(1)
    assert choose_runtime(config(), environment(threads=64)).threads == 1


def test_a_resumed_run_stays_on_its_device_if_that_is_available(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "available_devices", lambda: ["cuda:0", "cpu"])
    assert pick_device("auto") == "cuda:0"
    assert pick_device("auto", environment()) == "cpu"
    assert pick_device("auto", environment(device="mps")) == "cuda:0"
    assert pick_device("cuda", environment()) == "cuda:0"


@pytest.mark.parametrize("wanted", ["auto", "cuda", "cuda:1"])
def test_each_process_of_a_machine_has_a_gpu_of_its_own(wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "available_devices", lambda: ["cuda:0", "cuda:1", "cpu"])
    saved = environment(device="cuda:1")
    assert [pick_device(wanted, saved, rank) for rank in (0, 1)] == ["cuda:0", "cuda:1"]
    assert pick_device(wanted, saved, Processes().local_rank) == ("cuda:0" if wanted == "cuda" else "cuda:1")
    with pytest.raises(DeviceError, match="device=cuda:2 is not available"):
        pick_device(wanted, saved, 2)


def test_a_mac_trains_on_its_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "available_devices", lambda: ["cpu", "mps"])
    assert [pick_device("auto", None, rank) for rank in (None, 0, 1)] == ["cpu"] * 3
    assert pick_device("mps") == "mps"
    with pytest.raises(DeviceError, match="device=mps is not available; PyTorch finds cpu"):
        pick_device("mps", None, 1)
    assert [plan_runtime(RuntimeConfig(), processes, 0)[0].device for processes in (1, 2)] == ["cpu", "cpu"]


def test_a_run_from_a_missing_device_chooses_again() -> None:
    chosen = choose_runtime(RuntimeConfig(), environment(device="cuda:7", dtype="bfloat16", compile=True))
    assert chosen.device == pick_device("auto") != "cuda:7"
    assert chosen.compile is False


@pytest.mark.parametrize("name", ["cuda:99", "mps", "cuda"])
def test_a_missing_device_is_an_error_that_lists_the_others(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(DeviceError, match=f"^runtime.device={name} is not available; PyTorch finds cpu$"):
        choose_runtime(RuntimeConfig(device=name), environment())


def test_training_resumes_with_the_recorded_runtime(tmp_path: Path) -> None:
    auto = {"runtime__dtype": "auto", "runtime__threads": "auto", "runtime__device": "auto"}
    train(make_config(train__steps=2, runtime__dtype="bfloat16", runtime__threads=1), tmp_path, make_data())
    torch.set_num_threads(2)
    first, second = (tmp_path / f"checkpoints/step-0000000{step}" for step in (2, 4))
    train(make_config(train__steps=4, **auto), tmp_path, make_data(), resume=load_checkpoint(first))
    assert load_checkpoint(second).metadata.runtime == Runtime("cpu", "bfloat16", False, 1, "cpu").environment()
    assert torch.get_num_threads() == 1


# --- measuring and configuring -----------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_matrix_speed_is_that_of_the_fastest_product(monkeypatch: pytest.MonkeyPatch, dtype: str) -> None:
    """Only products advance the clock of this test. The first product does not count; the last starts within 0.3 s."""
    now, work = 0.0, 0
    seconds = iter([1e-3, 0.1, 0.06, 0.12, 0.15, 1e-3])

    def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        nonlocal now, work
        assert a.dtype is b.dtype is getattr(torch, dtype)
        assert torch.get_num_threads() == 1
        now, work = now + next(seconds), 2 * a.size(0) * a.size(1) * b.size(1)
        return a

    monkeypatch.setattr(torch.Tensor, "__matmul__", product)
    monkeypatch.setattr(device, "time", SimpleNamespace(perf_counter=lambda: now))
    monkeypatch.setattr(device, "available_cores", lambda: 2)
    torch.set_num_threads(2)
    speed = device.measure_product.__wrapped__("cpu", dtype)
    assert (speed, torch.get_num_threads()) == (pytest.approx(work / 0.06), 2)
    assert next(seconds) == 1e-3
    monkeypatch.setattr(device, "measure_product", lambda *_: 10.0)
    measured = [device.measure_matmul(Runtime("cpu", dtype, False, threads)) for threads in (1, 2, 4)]
    assert measured == [10.0, 20.0 * device.SHARED, 20.0 * device.SHARED], "four threads on two cores"


def test_the_matrix_speed_of_a_gpu_is_that_of_its_float32_in_training(monkeypatch: pytest.MonkeyPatch) -> None:
    precisions = list[str]()

    def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        precisions.append(torch.get_float32_matmul_precision())
        return a

    before, ones = torch.get_float32_matmul_precision(), torch.ones
    monkeypatch.setattr(torch.Tensor, "__matmul__", product)
    monkeypatch.setattr(torch, "ones", lambda *size, **_: ones(1, 1))
    device.measure_product.__wrapped__("cuda:0", "float32")
    assert set(precisions) == {"high"}
    assert torch.get_float32_matmul_precision() == before


RESIDENT_SHARE = """
import torch
from pathlib import Path
from minigpt.model.device import Runtime, configure_torch
configure_torch(Runtime("cpu", "float32", False, 1, "cpu"))
resident = lambda: int(Path("/proc/self/statm").read_text().split()[1])
tensors = [torch.ones(1 << 24) for _ in range(4)]  # 64 MB each
full = resident()
del tensors
print(resident() / full)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
def test_freed_memory_stays_with_the_process() -> None:
    done = subprocess.run([sys.executable, "-c", RESIDENT_SHARE], capture_output=True, text=True, check=True)
    assert float(done.stdout) > 0.95
