"""Where and how precisely a run computes: device, precision, threads, kernels, compilation.

`choose_runtime` decides and changes nothing. `configure_torch` sets up this process for the decision.
"""

import ctypes
import math
import os
import platform
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy
import torch

from minigpt import __version__
from minigpt.config.schema import RuntimeConfig
from minigpt.errors import DeviceError
from minigpt.model.kernels import KERNELS, Kernels
from minigpt.storage.metadata import Environment

COMPILE_SECONDS = {"cpu": 40.0, "cuda": 40.0}
"""Typical time of the first compilation of a small GPT, by device type. Others are never compiled for."""
COMPILE_SAVES = 0.15
"""Share of the training time that compilation saves at least."""
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
"""Parameters of mallopt, from glibc's malloc.h."""


@dataclass(frozen=True)
class Runtime:
    """The decisions for a run. Checkpoints record them, so a resumed run computes in the same way."""

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
        """Return a context that computes matrix products in this precision."""
        if self.dtype == "float32":
            return nullcontext()
        return torch.autocast(self.torch_device.type, dtype=torch.bfloat16)

    def describe(self) -> str:
        """Return the decisions as one line."""
        where = self.device
        if self.device == "cpu":
            where = f"cpu ({self.threads} thread{'s' * (self.threads > 1)})"
        elif self.torch_device.type == "cuda":
            where += f" ({torch.cuda.get_device_name(self.torch_device)})"
        return f"{where}, {self.dtype}, {self.kernels} kernels, {'compiled' if self.compile else 'not compiled'}"

    def environment(self) -> Environment:
        """Return the decisions, the processor and the versions that affect the last bits of a result."""
        return Environment(
            **asdict(self),
            processor=processor(self.torch_device),
            torch=str(torch.__version__),
            numpy=numpy.__version__,
            minigpt=__version__,
        )


# --- decide ------------------------------------------------------------------------------------------


def choose_runtime(
    config: RuntimeConfig, saved: Environment | None = None, *, flops: float = 0.0, seconds: float = 0.0
) -> Runtime:
    """Fill in the settings that are "auto".

    Args:
        config: The settings.
        saved: The environment of a run that resumes. Its decisions replace "auto" if its device is available.
        flops: The work of the whole run, which decides if compilation pays.
        seconds: The length of the run, if it is known instead of the work.

    Raises:
        DeviceError: The device is not available.
    """
    device = pick_device(config.device, saved)
    if not _is_available(device):
        raise DeviceError(f"runtime.device={device} is not available; PyTorch finds {', '.join(_devices())}")
    kind = torch.device(device).type
    kept = saved if saved and saved.device == device else None
    threads = _default_threads(saved) if config.threads == "auto" else config.threads
    dtype: str = config.dtype
    if dtype == "auto":
        dtype = kept.dtype if kept else "bfloat16" if has_fast_bfloat16(kind) else "float32"
    kernels: str = config.kernels
    if kernels == "auto":
        kernels = kept.kernels if kept else "cpu" if kind == "cpu" else "torch"
    chosen = Runtime(device, dtype, False, threads, kernels)
    compile = config.compile
    if compile == "auto":
        compile = kept.compile if kept else _compilation_pays(chosen, flops, seconds)
    return Runtime(device, dtype, compile, threads, kernels)


def pick_device(wanted: str, saved: Environment | None = None) -> str:
    """Return the device for `runtime.device`: for "auto" that of the saved run if available, else the first GPU."""
    if wanted != "auto":
        return wanted
    return saved.device if saved and _is_available(saved.device) else _devices()[0]


def _devices() -> list[str]:
    found = [f"cuda:{i}" for i in range(torch.cuda.device_count())]
    return [*found, *(["mps"] if torch.backends.mps.is_available() else []), "cpu"]


def _is_available(device: str) -> bool:
    return device in _devices() or (device == "cuda" and torch.cuda.is_available())


def _default_threads(saved: Environment | None) -> int:
    """Return the threads of the saved run, because sums depend on them, unless this machine has far fewer cores."""
    cores = os.cpu_count() or 1
    if saved is None:
        return torch.get_num_threads()
    return saved.threads if saved.threads <= 2 * cores else cores


@cache
def has_fast_bfloat16(kind: str) -> bool:
    """Return whether this type of device multiplies matrices faster in bfloat16 than in float32.

    On a CPU the instructions do not tell: Intel processors without AMX have them and take twice as long. Measure.
    """
    if kind == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if kind == "cpu" and _has_bfloat16_instructions():
        return _product_seconds(torch.bfloat16) < _product_seconds(torch.float32)
    return False


def _has_bfloat16_instructions() -> bool:
    capabilities = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return any(capabilities.get(name) for name in ("avx512_bf16", "amx_bf16"))


def _product_seconds(dtype: torch.dtype) -> float:
    """Return the time of a small matrix product on one CPU thread.

    The best of many short products falls between two interruptions, so a busy machine gives the same answer.
    """
    a, best = torch.ones(256, 256, dtype=dtype), math.inf
    with _threads(1):
        for _ in range(100):
            started = time.perf_counter()
            a @ a
            best = min(best, time.perf_counter() - started)
    return best


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def measure_matmul(runtime: Runtime) -> float:
    """Return the speed of a large matrix product in FLOP/s, the best within 0.1 s."""
    size = 1024 if runtime.device == "cpu" else 4096
    a = torch.ones(size, size, dtype=runtime.torch_dtype, device=runtime.device)

    def seconds() -> float:
        start = time.perf_counter()
        (a @ a)[0, 0].item()  # .item() waits for the device
        return time.perf_counter() - start

    seconds()  # the first product also initializes the library
    best, end = seconds(), time.perf_counter() + 0.1
    while time.perf_counter() < end:
        best = min(best, seconds())
    return float(2 * size**3 / best)


def _compilation_pays(runtime: Runtime, flops: float, seconds: float) -> bool:
    """Return whether compilation saves more time than it takes. Assume a third of the speed of a matrix product."""
    kind = runtime.torch_device.type
    if not (flops or seconds) or kind not in COMPILE_SECONDS or not has_compiler(kind):
        return False
    if not seconds:
        with _threads(runtime.threads):
            seconds = flops / (measure_matmul(runtime) / 3)
    return COMPILE_SAVES * seconds > COMPILE_SECONDS[kind]


def has_compiler(kind: str) -> bool:
    """Return whether torch.compile can work for this type of device: for a GPU it needs triton, else a C++ compiler."""
    if kind == "cuda":
        return find_spec("triton") is not None
    names = [os.environ["CXX"]] if os.environ.get("CXX") else {"win32": ["cl"]}.get(sys.platform, ["g++", "clang++"])
    return any(shutil.which(name) for name in names)


def processor(device: torch.device) -> str:
    """Return the name of the processor. For a CPU, include the instruction set that PyTorch uses."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    name, table = platform.processor() or platform.machine(), Path("/proc/cpuinfo")
    if table.is_file():
        lines = table.read_text(encoding="utf-8", errors="replace").splitlines()
        name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), name)
    return f"{name}, {torch.backends.cpu.get_cpu_capability()}"


# --- apply -------------------------------------------------------------------------------------------


def configure_torch(runtime: Runtime) -> None:
    """Set PyTorch's threads, matrix precision, determinism and allocator for this process."""
    torch.set_num_threads(runtime.threads)
    kind = runtime.torch_device.type
    if kind == "cuda":
        torch.set_float32_matmul_precision("high")  # TF32
    # Compiled CPU kernels add partial sums in the order in which threads finish. Exact resume needs a fixed order.
    deterministic = kind == "cpu" and runtime.compile
    if deterministic != torch.are_deterministic_algorithms_enabled():  # the call below imports the compiler
        torch.use_deterministic_algorithms(deterministic)
    if runtime.kernels == "cpu":
        keep_freed_memory()


def keep_freed_memory() -> None:
    """Let glibc keep freed memory for the next step. Otherwise the system must zero the same pages every step."""
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    if libc is not None and hasattr(libc, "mallopt"):
        libc.mallopt(M_MMAP_MAX, 0)
        libc.mallopt(M_TRIM_THRESHOLD, -1)


def reseed(runtime: Runtime, seed: int) -> None:
    """Seed the generator that dropout draws from on this device."""
    if runtime.device == "cpu":
        torch.default_generator.manual_seed(seed)  # torch.manual_seed records a stack trace for each GPU backend
    else:
        torch.manual_seed(seed)
