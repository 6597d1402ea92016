"""The device, precision, threads, kernels and compilation of a run.

`choose_runtime` only decides. `configure_torch` sets up this process accordingly.
"""

import ctypes
import math
import os
import platform
import re
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any

import numpy
import torch

from minigpt import __version__
from minigpt.config.schema import RuntimeConfig
from minigpt.errors import DeviceError, count
from minigpt.model.kernels import KERNELS, Kernels
from minigpt.model.waiting import adapt_to_load
from minigpt.storage.metadata import Environment
from minigpt.world import available_cores, set_variables, system_table

SHARED = 0.8
"""Speed of threads that share a multiplication, as a fraction of their summed speeds: 137 / 171 GFLOP/s on 2 cores."""
COMPILE_FROM_FLOP = 1e13
"""On a CPU, compile runs of at least this work: compiling takes 10 to 40 s, and saves at least 13% of a step's time."""

PRECISION = "high"
"""How a GPU multiplies float32 matrices: in TF32."""


@dataclass(frozen=True)
class Runtime:
    """The decisions for a run. Checkpoints record them, so a resumed run can compute in the same way."""

    device: str
    dtype: str
    compile: bool
    threads: int
    kernels: str = "torch"

    @property
    def torch_device(self) -> torch.device:
        return torch.device(self.device)

    @property
    def torch_dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.dtype == "bfloat16" else torch.float32

    @property
    def model_kernels(self) -> Kernels:
        return KERNELS[self.kernels]

    def autocast(self) -> AbstractContextManager[Any]:
        """Return a context that computes matrix multiplications in the precision `dtype`."""
        if self.dtype == "float32":
            return nullcontext()
        return torch.autocast(self.torch_device.type, dtype=torch.bfloat16)

    def describe(self) -> str:
        """Return the decisions as one line."""
        cores = f" on {available_cores()} cores" if self.threads < available_cores() else ""
        threads = f"cpu ({count(self.threads, 'thread')}{cores})"
        where = self.device if self.device != "cpu" else threads
        return f"{where}, {self.dtype}, {self.kernels} kernels, {'torch.compile' if self.compile else 'not compiled'}"

    def environment(self) -> Environment:
        """Return the decisions, the processor and the versions that affect the last bits of a result."""
        return Environment(
            **asdict(self),
            processor=processor(self.torch_device),
            torch=str(torch.__version__),
            numpy=numpy.__version__,
            minigpt=__version__,
        )


def choose_runtime(config: RuntimeConfig, saved: Environment | None = None, *, flops: float = 0.0) -> Runtime:
    """Fill in the settings that are "auto".

    Args:
        saved: The environment of a run that resumes. Its decisions replace "auto" on the same type of device.
        flops: The work of the run, which decides if compilation pays. It does not depend on the number of processes.

    Raises:
        DeviceError: The device is not available.
    """
    device = pick_device(config.device, saved)
    kind = torch.device(device).type
    earlier = saved if saved and saved.device.partition(":")[0] == kind else None

    def choose(name: str, default: Callable[[], Any]) -> Any:
        wanted = getattr(config, name)
        return wanted if wanted != "auto" else getattr(earlier, name) if earlier else default()

    threads = config.threads
    if threads == "auto":  # sums depend on the number of threads, but far more threads than cores are slow
        default = min(torch.get_num_threads(), available_cores())  # PyTorch ignores the CPU quota of a container
        threads = saved.threads if saved and saved.threads <= 2 * available_cores() else default
    dtype = choose("dtype", lambda: "bfloat16" if has_fast_bfloat16(kind) else "float32")
    kernels = choose("kernels", lambda: "cpu" if kind == "cpu" else "torch")
    runtime = Runtime(device, dtype, False, threads, kernels)
    pays = kind == "cpu" and flops >= COMPILE_FROM_FLOP
    return replace(runtime, compile=choose("compile", lambda: pays and has_compiler()))


def pick_device(wanted: str, saved: Environment | None = None, local_rank: int | None = None) -> str:
    """Return the device for `runtime.device`: for "auto" the saved device if available, else the first one.

    With several processes on a machine, process `local_rank` gets the GPU of that number, whichever is set or saved.

    Raises:
        DeviceError: The device is not available.
    """
    devices = available_devices()
    if local_rank is not None:
        devices = [device for device in devices if device != "mps"]  # gloo cannot add its gradients
    device = "cuda:0" if wanted == "cuda" else wanted
    if wanted == "auto":
        device = saved.device if saved and saved.device in devices else devices[0]
    if local_rank is not None and device.startswith("cuda"):
        device = f"cuda:{local_rank}"
    if device not in devices:
        wanted = device if local_rank else wanted
        raise DeviceError(f"runtime.device={wanted} is not available; PyTorch finds {', '.join(devices)}")
    return device


def available_devices() -> list[str]:
    """Return the devices of this machine. The first is what "auto" means: a CUDA GPU, or else the CPU.

    A Mac's GPU comes last, because no test has run on one.
    """
    gpus = [f"cuda:{i}" for i in range(torch.cuda.device_count())]
    return [*gpus, "cpu", *["mps"] * torch.backends.mps.is_available()]


def has_fast_bfloat16(kind: str) -> bool:
    """Return whether this type of device multiplies matrices faster in bfloat16 than in float32.

    On a CPU, the instruction set decides. Some Intel processors without AMX have instructions for bfloat16, but take
    twice as long with them.
    """
    if kind == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    read = getattr(torch.cpu, "get_capabilities", None)  # recent PyTorch only
    capabilities = read() if read and kind == "cpu" else {}
    is_intel = "GenuineIntel" in system_table("/proc/cpuinfo")
    return bool(capabilities.get("amx_bf16") or (capabilities.get("avx512_bf16") and not is_intel))


def measure_matmul(runtime: Runtime) -> float:
    """Return the throughput of matrix multiplications in FLOP/s. On a CPU, estimate it from one thread.

    The throughput of all threads together would depend on the load, because each thread waits for the slowest.
    """
    cores = min(runtime.threads, available_cores()) if runtime.device == "cpu" else 1
    return cores * (SHARED if cores > 1 else 1.0) * measure_product(runtime.device, runtime.dtype)


@cache
def measure_product(device: str, dtype: str) -> float:
    """Return the throughput of a matrix multiplication in FLOP/s: the best result within 0.3 s.

    On a CPU, one thread multiplies, and the matrices are small, so that some repetitions are not interrupted.
    """
    size = 192 if device == "cpu" else 4096
    a = torch.ones(size, size, dtype=getattr(torch, dtype), device=device)
    threads, precision, best = torch.get_num_threads(), torch.get_float32_matmul_precision(), math.inf
    torch.set_num_threads(1)
    if device.startswith("cuda"):
        torch.set_float32_matmul_precision(PRECISION)
    (a @ a)[0, 0].item()  # the first multiplication also initializes the library
    end = time.perf_counter() + 0.3
    while (start := time.perf_counter()) < end:
        (a @ a)[0, 0].item()  # .item() waits for the device
        best = min(best, time.perf_counter() - start)
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision(precision)
    return float(2 * size**3 / best)


def has_compiler() -> bool:
    """Return whether torch.compile finds the C++ compiler that it needs for a CPU."""
    default = {"win32": "cl", "darwin": "clang++"}.get(sys.platform, "g++")
    return shutil.which(os.environ.get("CXX") or default) is not None


def processor(device: torch.device) -> str:
    """Return the name of the processor. For a CPU, include the instruction set that PyTorch uses."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    model = re.search(r"^model name\s*: (.+)", system_table("/proc/cpuinfo"), re.MULTILINE)
    name = model[1] if model else platform.processor() or platform.machine()
    return f"{name}, {torch.backends.cpu.get_cpu_capability()}"


def configure_torch(runtime: Runtime) -> None:
    """Set PyTorch's threads, matrix precision and determinism, and the heap of this process."""
    torch.set_num_threads(runtime.threads)
    kind = runtime.torch_device.type
    if kind == "cpu" and runtime.threads > 1:
        adapt_to_load()
    if kind == "cuda":
        set_variables()  # from Python, no command has set them
        torch.cuda.set_device(runtime.torch_device)  # NCCL uses the current device
        torch.set_float32_matmul_precision(PRECISION)
    # Exact resume needs a fixed order of sums. Compiled CPU kernels, and attention on a GPU, would add partial sums in
    # the order in which threads finish.
    deterministic = kind == "cuda" or (kind == "cpu" and runtime.compile)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # it costs time
    if kind == "cpu" and runtime.compile:  # otherwise the compiler first tests all vector instructions, for up to 15 s
        os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")
    # Not torch.use_deterministic_algorithms: it imports the compiler, which fails if it cannot write to its cache.
    torch.set_deterministic_debug_mode("error" if deterministic else "default")
    if runtime.kernels == "cpu" and sys.platform == "linux":
        # Let glibc keep freed memory for the next step. Otherwise the system must zero the same pages every step.
        libc = ctypes.CDLL(None)
        libc.mallopt(-4, 0)  # M_MMAP_MAX
        libc.mallopt(-1, -1)  # M_TRIM_THRESHOLD


def reseed(runtime: Runtime, seed: int) -> None:
    """Seed the generator that dropout draws from on this device."""
    if runtime.device == "cpu":
        torch.default_generator.manual_seed(seed)  # torch.manual_seed records a stack trace for each GPU backend
    else:
        torch.manual_seed(seed)
