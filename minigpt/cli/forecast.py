"""What a run would take: memory by part, operations and time."""

from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import lru_cache

from minigpt.config.schema import RunConfig
from minigpt.model.device import Runtime
from minigpt.model.gpt import use_kernels
from minigpt.model.kernels import TORCH, sdpa_fused
from minigpt.model.memory import Memory, free_memory_bytes, peak_memory, training_memory
from minigpt.model.size import count_parameters, training_flops
from minigpt.training.learner import Learner
from minigpt.training.parallel import check_count
from minigpt.training.timing import StepTime, changed, plan_runtime, time_step

LIBRARIES = 45_000_000
"""Bytes that oneDNN and OpenMP take in the first step on a CPU."""


@dataclass(frozen=True)
class PlannedMemory(Memory):
    """The memory of one process, and whether it fits."""

    peak: int
    fits: bool | None = None
    """None if the free memory is unknown."""
    largest_micro_batch: int | None = None
    settings: tuple[str, ...] = ()
    """Settings, as KEY=VALUE, that make the run fit."""


@dataclass(frozen=True)
class Plan:
    """The cost of a run."""

    parameters: int
    runtime: Runtime
    free_bytes: int | None
    """Free memory for each process."""
    memory: PlannedMemory
    flops_per_token: int
    flops_per_step: int
    seconds_per_step: float | None
    """None if the device is not available."""
    is_measured: bool
    """False if a step takes too long to measure or does not fit: its time is then estimated, if the device is here."""


@lru_cache
def planned_sequence_bytes(config: RunConfig, vocab_size: int, runtime: Runtime) -> int:
    """Return `sequence_bytes` of a run, computed on a CPU. Allocate them only for recurrent layers."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    def count(layers: int) -> int:
        first_layers = changed(config, model={"n_layer": layers})
        # Fake tensors take no memory, but lack oneDNN's workspace for recurrent layers, so these layers are allocated.
        with nullcontext() if config.model.is_recurrent else FakeTensorMode():
            learner = Learner(first_layers, vocab_size, replace(runtime, device="cpu", compile=False))
            if (
                runtime.device != "cpu" and runtime.kernels != "reference"
            ):  # for dropout, a CPU keeps all attention weights, and a GPU none
                use_kernels(learner.model, replace(TORCH, sdpa=lambda q, k, v, _: sdpa_fused(q, k, v, 0.0)))
            return learner.sequence_bytes()

    one, two = count(1), count(min(2, config.model.n_layer))
    return one + (config.model.n_layer - 1) * (two - one)


def make_plan(
    config: RunConfig, vocab_size: int, processes: int = 1, time: StepTime | None = None, program: int | None = None
) -> Plan:
    """Plan a run. Raises ConfigError if `processes` cannot divide the shards.

    If `time` is None and the run's device is on this machine, measure the time of a step. `program` is the memory of
    this process before it computed anything, in bytes.
    """
    train, flops_per_token = config.train, training_flops(config.model, vocab_size)
    check_count(processes, config)
    per_step = flops_per_token * config.tokens_per_step
    program = program or peak_memory() or 0  # before this process computes anything
    runtime, is_here = plan_runtime(config.runtime, processes, per_step * (train.steps or 0))
    is_cpu = runtime.device == "cpu"
    free = free_memory_bytes(runtime.device) if is_here else None
    if free and is_cpu:  # processes on GPUs have a GPU each
        free = (free + program) // processes  # this process will end before the run starts
    program = program + LIBRARIES if is_cpu else 0
    sequence = planned_sequence_bytes(config, vocab_size, runtime)
    needed = training_memory(config, vocab_size, runtime.device, sequence, processes=processes, program=program)
    memory = plan_memory(config, free, needed)
    if is_here and not time:
        time = time_step(config, vocab_size, runtime, processes, 2.0)
    parameters = count_parameters(config.model, vocab_size)
    step_seconds, is_measured = (time.step, time.is_measured) if time else (None, False)
    return Plan(parameters, runtime, free, memory, flops_per_token, per_step, step_seconds, is_measured)


def plan_memory(config: RunConfig, free: int | None, needed: Memory) -> PlannedMemory:
    """Return whether `needed` fits in `free` bytes, and the settings that make it fit."""
    planned = PlannedMemory(**asdict(needed), peak=needed.total)
    if free is None:
        return planned
    fits, largest = needed.total <= free, needed.micro_batch_within(config, free)
    settings = (f"train.micro_batch_size={largest}",) if largest and not fits else ()
    return replace(planned, fits=fits, largest_micro_batch=largest, settings=settings)
