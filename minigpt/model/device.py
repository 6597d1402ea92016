"""Where it is computed, and how precisely: device, precision, threads, compilation. Chosen once, said in one line."""

import math
import os
import platform
import shutil
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy
import torch

from minigpt import __version__
from minigpt.config.schema import RuntimeConfig
from minigpt.errors import UserError
from minigpt.model.kernels import CPU, TORCH, Kernels, keep_freed_memory, linear_on_cpu
from minigpt.model.memory import peak_memory
from minigpt.storage.metadata import Environment

COMPILE_SECONDS = {"cpu": 40.0, "cuda": 40.0}
"""What a first compilation of a small GPT costs, about, per device type. Devices not named are not compiled for."""
ONE_THREAD = 1_500_000
"""Parameters from which on a second thread helps to draw one stream."""
COMPILE_SAVES = 0.15
"""The share of the training time that compilation must be trusted to save before it is chosen."""


@dataclass(frozen=True)
class Runtime:
    """The choices of a run, made once. They are kept in its checkpoints, so that a resumed run makes none anew."""

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

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the context in which matrix products are computed in this precision."""
        if self.dtype == "float32":
            return nullcontext()
        return torch.autocast(self.torch_device.type, dtype=torch.bfloat16)

    def describe(self) -> str:
        """Return the choices as one line for people."""
        where = f"cpu ({self.threads} thread{'s' * (self.threads > 1)})" if self.device == "cpu" else self.device
        if self.torch_device.type == "cuda":
            where += f" ({torch.cuda.get_device_name(self.torch_device)})"
        return f"{where}, {self.dtype}, {self.kernels} kernels, {'compiled' if self.compile else 'not compiled'}"

    def use_kernels(self) -> Kernels:
        """Return the kernels chosen, and prepare the process for them."""
        if self.kernels == "torch":
            return TORCH
        keep_freed_memory()
        return CPU

    def facts(self) -> Environment:
        """Return the choices with what else decides the last bits of a result, as a checkpoint keeps them."""
        return Environment(
            **asdict(self),
            processor=processor(self.torch_device),
            torch=str(torch.__version__),
            numpy=numpy.__version__,
            minigpt=__version__,
        )


def choose(
    config: RuntimeConfig, saved: Environment | None = None, *, run_flops: float = 0.0, run_seconds: float = 0.0
) -> Runtime:
    """Choose what `config` leaves open, and set torch up for it.

    `saved` holds the choices of a run that is resumed. The work of the whole run, or its length where that
    is given in time, decides whether compilation pays. Raises UserError for a device that is not there.
    """
    device = pick_device(config.device, saved)
    if not _is_available(device):
        raise UserError(f"runtime.device {device} is not available here; torch finds: {', '.join(_devices())}")
    kind = torch.device(device).type
    kept = saved if saved and saved.device == device else None
    threads = config.threads
    if threads == "auto":
        threads = saved.threads if saved else torch.get_num_threads()
        cores = os.cpu_count() or 1
        if saved and threads > 2 * cores:  # the checkpoint is from a much larger machine
            threads = cores
    torch.set_num_threads(int(threads))
    dtype: str = config.dtype
    if dtype == "auto":
        dtype = kept.dtype if kept else "bfloat16" if has_fast_bfloat16(kind) else "float32"
    compile = config.compile
    if compile == "auto":
        compile = kept.compile if kept else _compilation_pays(kind, dtype, run_flops, run_seconds)
    if kind == "cuda":
        torch.set_float32_matmul_precision("high")  # TF32
    # Compiled kernels sum in the order in which threads arrive unless told not to: exact resume needs this.
    deterministic = kind == "cpu" and bool(compile)
    if deterministic != torch.are_deterministic_algorithms_enabled():  # the call imports the whole compiler
        torch.use_deterministic_algorithms(deterministic)
    kernels: str = config.kernels
    if kernels == "auto":
        kernels = kept.kernels if kept else "cpu" if kind == "cpu" else "torch"
    return Runtime(device, dtype, compile, int(threads), kernels)


def sampling_threads(parameters: int, num_samples: int) -> int | Literal["auto"]:
    """Return how many threads to draw with: one where a step of one stream is too short for a second to help.

    On a busy machine, as beside a training run, waiting for that second thread would take most of the time.
    """
    return 1 if num_samples == 1 and parameters < ONE_THREAD else "auto"


def reseed(runtime: Runtime, seed: int) -> None:
    """Set the generator that dropout draws from on this device."""
    if runtime.device == "cpu":
        torch.default_generator.manual_seed(seed)  # torch.manual_seed notes a stack trace for each GPU backend
    else:
        torch.manual_seed(seed)


def processor(device: torch.device) -> str:
    """Return the name of what computes on this device, with the instructions that torch uses of a CPU."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    name, table = platform.processor() or platform.machine(), Path("/proc/cpuinfo")
    if table.is_file():
        lines = table.read_text(encoding="utf-8", errors="replace").splitlines()
        name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), name)
    return f"{name}, {torch.backends.cpu.get_cpu_capability()}"


@cache
def has_fast_bfloat16(kind: str) -> bool:
    """Return whether this device type multiplies bfloat16 matrices in hardware, and faster than float32 ones.

    Having the instructions is not enough on a CPU, so there both are timed: an Intel processor without AMX, or a
    virtual machine that hides it, takes twice as long in bfloat16.
    """
    if kind == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if kind == "cpu" and has_bfloat16_instructions():
        return _product_seconds(torch.bfloat16) < _product_seconds(torch.float32)
    return False


def has_bfloat16_instructions() -> bool:
    """Return whether this CPU has any for products in bfloat16, which say nothing of their speed."""
    capabilities = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return any(capabilities.get(name) for name in ("avx512_bf16", "amx_bf16"))


def _product_seconds(dtype: torch.dtype) -> float:
    """Return how long one thread takes for a small product on the CPU.

    It is the best of many, each done between two interruptions, so that a busy machine shows what an idle one does:
    a choice that goes by it must be the same each time.
    """
    a, best, threads = torch.ones(256, 256, dtype=dtype), math.inf, torch.get_num_threads()
    torch.set_num_threads(1)
    for _ in range(100):
        started = time.perf_counter()
        linear_on_cpu(a, a, None)
        best = min(best, time.perf_counter() - started)
    torch.set_num_threads(threads)
    return best


def measure_matmul(runtime: Runtime) -> float:
    """Return the FLOP/s of a large matrix product on this device in this precision, the best in a tenth of a second."""
    size = 1024 if runtime.device == "cpu" else 4096
    a = torch.ones(size, size, dtype=runtime.torch_dtype, device=runtime.device)

    def seconds() -> float:
        start = time.perf_counter()
        (a @ a)[0, 0].item()  # .item() waits for the device
        return time.perf_counter() - start

    seconds()  # the first product also sets up
    best, end = seconds(), time.perf_counter() + 0.1
    while time.perf_counter() < end:
        best = min(best, seconds())
    return float(2 * size**3 / best)


def memory_bytes(runtime: Runtime) -> int | None:
    """Return the most memory this process has used: on the GPU there, else of the process; None where unknown."""
    if runtime.torch_device.type == "cuda":
        return torch.cuda.max_memory_allocated(runtime.torch_device)
    return peak_memory()


def seconds_waited() -> float:
    """Return how long this thread has waited for a core while others ran; 0 where the system does not say."""
    figures = Path("/proc/thread-self/schedstat")  # nanoseconds on a core, nanoseconds waiting for one, turns
    return int(figures.read_text(encoding="ascii").split()[1]) / 1e9 if figures.is_file() else 0.0


def _devices() -> list[str]:
    found = [f"cuda:{i}" for i in range(torch.cuda.device_count())]
    return [*found, *(["mps"] if torch.backends.mps.is_available() else []), "cpu"]


def best_device() -> str:
    """Return the device that `auto` picks for a new run: the first GPU, else the CPU."""
    return _devices()[0]


def pick_device(wanted: str, saved: Environment | None = None) -> str:
    """Return `wanted`, or for "auto" the device of a run that is resumed, where it is here, or the best one."""
    if wanted != "auto":
        return wanted
    return saved.device if saved and _is_available(saved.device) else best_device()


def _is_available(device: str) -> bool:
    return device in _devices() or (device == "cuda" and torch.cuda.is_available())


def _compilation_pays(kind: str, dtype: str, run_flops: float, run_seconds: float) -> bool:
    """Return whether compiling saves more than it costs, were the run to reach a third of the matrix speed."""
    if not (run_flops or run_seconds) or kind not in COMPILE_SECONDS or not _has_compiler(kind):
        return False
    if not run_seconds:
        run_seconds = run_flops / (measure_matmul(Runtime(kind, dtype, False, torch.get_num_threads())) / 3)
    return COMPILE_SAVES * run_seconds > COMPILE_SECONDS[kind]


def _has_compiler(kind: str) -> bool:
    if kind == "cuda":
        from importlib.util import find_spec

        return find_spec("triton") is not None
    names = [os.environ["CXX"]] if os.environ.get("CXX") else {"win32": ["cl"]}.get(sys.platform, ["g++", "clang++"])
    return any(shutil.which(name) for name in names)
