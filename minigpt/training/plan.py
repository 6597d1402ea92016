"""What a run would take: memory by part, operations and time. No text is read."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch

from minigpt.config.schema import RunConfig, RuntimeConfig
from minigpt.errors import DeviceError, InsufficientMemoryError
from minigpt.model.device import Runtime, choose_runtime, measure_matmul, pick_device
from minigpt.model.gpt import use_kernels
from minigpt.model.kernels import TORCH, sdpa_fused
from minigpt.model.memory import Memory, free_memory_bytes, peak_memory, training_memory
from minigpt.model.size import count_parameters, training_flops
from minigpt.text.tokenizer import Ids
from minigpt.training.compilation import choose_loss, is_recordable
from minigpt.training.learner import Learner
from minigpt.training.parallel import check_count
from minigpt.world import available_cores

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
    """Settings, as KEY=VALUE, that make it fit."""


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
    """False if a step takes too long or does not fit. Its time is then that of three times its matrix products."""


@dataclass(frozen=True)
class StepTime:
    """The time of a run's parts, in seconds."""

    step: float
    evaluated_token: float
    """Evaluating a token takes about a third of the time of training on it."""
    is_measured: bool


@lru_cache
def planned_sequence_bytes(config: RunConfig, vocab_size: int, runtime: Runtime) -> int:
    """Return `sequence_bytes` of a run without allocating them. A GPU is taken to keep what a CPU keeps."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    def count(layers: int) -> int:
        first_layers = changed(config, model={"n_layer": layers})
        # Fake tensors have shapes but no numbers. They lack oneDNN's workspace for recurrent layers, which are small.
        with nullcontext() if config.model.is_recurrent else FakeTensorMode():
            learner = Learner(first_layers, vocab_size, replace(runtime, device="cpu", compile=False))
            if runtime.device != "cpu":  # for dropout, a CPU keeps all attention weights, and a GPU none
                use_kernels(learner.model, replace(TORCH, sdpa=lambda q, k, v, _: sdpa_fused(q, k, v, 0.0)))
            return learner.sequence_bytes()

    one, two = count(1), count(min(2, config.model.n_layer))
    return one + (config.model.n_layer - 1) * (two - one)


def make_plan(
    config: RunConfig, vocab_size: int, processes: int = 1, time: StepTime | None = None, program: int | None = None
) -> Plan:
    """Plan a run in so many processes. Raises ConfigError if they cannot divide the shards.

    Measure its `time`, unless given, if its device is available. `program` is the memory of this process before that.
    """
    train, flops_per_token = config.train, training_flops(config.model, vocab_size)
    check_count(processes, config)
    per_step = flops_per_token * config.tokens_per_step
    program = program or peak_memory() or 0  # before this process computes anything
    runtime, is_here = plan_runtime(config.runtime, processes, per_step * (train.steps or 0))
    is_cpu = runtime.device == "cpu"
    free = free_memory_bytes(runtime.device) if is_here else None
    if free and is_cpu:  # processes on GPUs have one each
        free = (free + program) // processes  # this process will end before the run starts
    program = program + LIBRARIES if is_cpu else 0

    def needs(config: RunConfig) -> Memory:
        sequence = planned_sequence_bytes(config, vocab_size, runtime)
        return training_memory(config, vocab_size, runtime.device, sequence, processes=processes, program=program)

    memory = plan_memory(config, free, needs)
    if is_here and not time:
        time = time_step(config, vocab_size, runtime, processes, 2.0)
    parameters = count_parameters(config.model, vocab_size)
    step_seconds, is_measured = (time.step, time.is_measured) if time else (None, False)
    return Plan(parameters, runtime, free, memory, flops_per_token, per_step, step_seconds, is_measured)


def time_step(config: RunConfig, vocab_size: int, runtime: Runtime, processes: int, seconds: float) -> StepTime:
    """Measure the time of a step for about `seconds`, or estimate it if that takes too long or does not fit."""
    context, is_cpu = config.model.context, runtime.device == "cpu"
    estimate = 3 * training_flops(config.model, vocab_size) * context / measure_matmul(runtime)
    affordable = seconds / 4 / estimate  # sequences, to measure several steps
    sequences = max(1, min(config.train.sequences_at_once, int(affordable)))
    measured = measure_step(config, vocab_size, runtime, seconds, sequences) if affordable >= 1 / 20 else None
    sequence, update = measured or (estimate, 0.0)
    # One process was measured alone. Together, they wait if their threads are more than the cores.
    waiting = max(1.0, processes * runtime.threads / max(runtime.threads, available_cores())) if is_cpu else 1.0
    step = config.train.batch_size // processes * sequence + update
    return StepTime(waiting * step, waiting * sequence / (3 * context * processes), measured is not None)


def measure_step(
    config: RunConfig, vocab_size: int, runtime: Runtime, seconds: float, sequences: int
) -> tuple[float, float] | None:
    """Measure steps of so many sequences for about `seconds`, without compilation.

    Return the seconds of the passes of one sequence, and those of an update. None if the model does not fit.
    """
    batch = {"batch_size": sequences, "micro_batch_size": None, "shards": 1}
    compile = config.runtime.compile if is_recordable(config, runtime) else False  # "auto" records
    small = changed(config, train=batch, runtime={"compile": compile})
    tokens = np.random.default_rng(0).integers(vocab_size, size=(sequences + 2) * config.model.context)
    try:
        learner = Learner(small, vocab_size, replace(runtime, compile=False))
        learner.check_fit()
        learner.use(choose_loss(learner, tokens, lambda line: None))
        for step in range(2):  # the first steps allocate memory
            timed_step(learner, tokens, step)
    except InsufficientMemoryError:
        return None
    times, end = list[tuple[float, float]](), perf_counter() + seconds
    while len(times) < 2 or perf_counter() < end:
        times.append(timed_step(learner, tokens, 2 + len(times)))
    passes, updates = zip(*times, strict=True)
    return median(passes) / sequences, median(updates)


def timed_step(learner: Learner, tokens: Ids, number: int) -> tuple[float, float]:
    """Make a step, and return the seconds of its passes and of its update."""
    started = perf_counter()
    learner.compute_gradients(tokens, number).item()  # waits for the device
    middle = perf_counter()
    learner.update(1.0)
    learner.model.token_embedding.weight[0, 0].item()  # waits for the device
    return middle - started, perf_counter() - middle


def plan_runtime(config: RuntimeConfig, processes: int, flops: float) -> tuple[Runtime, bool]:
    """Return the runtime of each process of a run that computes `flops` FLOP, and whether its device is available."""
    threads = min(torch.get_num_threads(), max(1, available_cores() // processes))  # workers start with their share
    chosen = config.model_copy(update={"threads": threads} if config.threads == "auto" else {})
    try:
        device = pick_device(config.device, local_rank=0 if processes > 1 else None)
        return choose_runtime(chosen.model_copy(update={"device": device}), None, flops=flops), True
    except DeviceError:
        dtype = "bfloat16" if config.dtype == "auto" else config.dtype
        return Runtime(config.device, dtype, False, threads), False


def plan_memory(config: RunConfig, free: int | None, needs: Callable[[RunConfig], Memory]) -> PlannedMemory:
    """Return what a run `needs`, whether it fits in `free` bytes, and the settings that make it fit."""
    memory = needs(config)
    planned = PlannedMemory(**asdict(memory), peak=memory.total)
    if free is None:
        return planned
    fits, largest = memory.total <= free, memory.micro_batch_within(config, free)
    settings: tuple[str, ...] = ()
    if not fits and largest:
        settings = (f"train.micro_batch_size={largest}",)
    return replace(planned, fits=fits, largest_micro_batch=largest, settings=settings)


def changed(config: RunConfig, **sections: dict[str, Any]) -> RunConfig:
    """Return `config` with other settings in some `sections`. They are not checked."""
    return config.model_copy(
        update={name: getattr(config, name).model_copy(update=values) for name, values in sections.items()}
    )
