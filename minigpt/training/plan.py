"""What a run would take: memory by part for each kind of parallelism, operations and time. No text is read."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from minigpt.config.schema import RunConfig, RuntimeConfig
from minigpt.errors import DeviceError
from minigpt.model.device import Runtime, choose_runtime, measure_matmul, pick_device
from minigpt.model.memory import SPARING, free_memory_bytes, largest_micro_batch, peak_memory
from minigpt.model.size import count_parameters, training_flops
from minigpt.training.parallel import check_count
from minigpt.training.step_cost import count_step, measure_step
from minigpt.world import available_cores

HEAP = {False: 1.45, True: 2.9}
"""Memory of the process on a CPU per byte of the tensors that a step creates, without and with checkpointing.

The heap (glibc 2.36) cannot use every hole that freed tensors leave. Measured: 1.3 to 1.8, and 2.6 to 4.2.
"""
LIBRARIES = 45_000_000
"""Bytes that oneDNN and OpenMP take in the first step on a CPU."""


@dataclass(frozen=True)
class Memory:
    """The memory of one process in bytes. Its parts are not all needed at the time of the `peak`."""

    program: int
    """Python, PyTorch and its libraries, on a CPU."""
    weights: int
    gradients: int
    optimizer: int
    average: int
    """The moving average of the weights."""
    exchange: int
    """`data`: the buffer for sums over processes. `fsdp`: the embeddings and one block, gathered."""
    activations: int
    """What the forward pass keeps for the backward pass."""
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
    parallel: dict[str, Memory]
    flops_per_token: int
    flops_per_step: int
    seconds_per_step: float | None
    """None if the device is not available."""
    is_measured: bool
    """False if two layers take too long. The time is then estimated: a third of the speed of matrix multiplications."""


@dataclass(frozen=True)
class StepTime:
    """The time of a run's parts, in seconds."""

    step: float
    evaluated_token: float
    """Evaluating a token takes about a third of the time of training on it."""
    is_measured: bool


def process_memory(
    config: RunConfig,
    sequences: int,
    vocab_size: int,
    runtime: Runtime,
    processes: int = 1,
    kind: str = "data",
    program: int = 0,
) -> Memory:
    """Return the memory of one of several processes, with micro-batches of `sequences`."""
    train, parts, is_cpu = config.train, processes if kind == "fsdp" else 1, runtime.device == "cpu"
    step, block = (count_step(config, vocab_size, runtime, sequences, n) for n in (config.model.n_layer, 1))
    shards = train.shards // processes  # of this process
    gradients = step["gradients"] * (1 + math.ceil(math.log2(shards)))  # a sum for each level of a tree, and the newest
    if parts > 1:  # of several shards, FSDP2 keeps the whole gradients until the last one
        gradients = step["gradients"] // (parts if shards == 1 else 1)
    weights, state = step["weights"] // parts, step["optimizer"] // parts
    # FSDP gathers the embeddings and one block, with their gradients. Muon updates a whole matrix at a time.
    exchange = 0
    if parts > 1:
        exchange = 2 * block["weights"]
    elif processes > 1:
        exchange = step["gradients"]
    adds = parts > 1 or sequences < train.batch_size // train.shards
    backward = gradients + (step["more"] if adds else step["first"] - step["gradients"])
    update = step["gradients"] // parts + (block if parts > 1 else step)["update"]
    changing = int(max(backward, update) * (HEAP[config.runtime.activation_checkpointing] if is_cpu else 1))
    fixed = (program, weights, gradients, state, weights if train.ema else 0, exchange)
    return Memory(*fixed, step["activations"], sum(fixed) - gradients + changing)


def make_plan(
    config: RunConfig, vocab_size: int, processes: int = 1, time: StepTime | None = None, program: int | None = None
) -> Plan:
    """Plan a run in so many processes.

    Measure its `time`, unless given, if its device is available. `program` is the memory of this process before that.

    Raises:
        ConfigError: This number of processes cannot divide the shards.
    """
    train, each = config.train, training_flops(config.model, vocab_size)
    check_count(processes, config)
    per_step = each * config.tokens_per_step
    program = program or peak_memory() or 0  # before this process computes anything
    runtime, is_here = plan_runtime(config.runtime, processes, per_step * (train.steps or 0))
    is_cpu = runtime.device == "cpu"
    program = program + LIBRARIES if is_cpu else 0
    free = free_memory_bytes(runtime.device) if is_here else None
    free = free // processes if free and is_cpu else free  # processes on GPUs have one each
    kinds = ("data", "fsdp") if processes > 1 and not config.model.is_recurrent else ("data",)
    common: dict[str, Any] = {"vocab_size": vocab_size, "runtime": runtime, "processes": processes, "program": program}
    parallel = {kind: _fit(config, free, partial(process_memory, **common, kind=kind)) for kind in kinds}
    if is_here and not time:
        time = time_step(config, vocab_size, runtime, processes, 2.0)
    parameters = count_parameters(config.model, vocab_size)
    step_seconds, is_measured = (time.step, time.is_measured) if time else (None, False)
    return Plan(parameters, runtime, free, parallel, each, per_step, step_seconds, is_measured)


def time_step(config: RunConfig, vocab_size: int, runtime: Runtime, processes: int, seconds: float) -> StepTime:
    """Measure the time of a step for about `seconds`, or estimate it if that takes too long."""
    context, is_cpu = config.model.context, runtime.device == "cpu"
    measured = measure_step(config, vocab_size, runtime, seconds)
    flops = training_flops(config.model, vocab_size) * context
    sequence, update = measured or (3 * flops / measure_matmul(runtime), 0.0)
    # One process was measured alone. Together, they wait if their threads are more than the cores.
    waiting = max(1.0, processes * runtime.threads / max(runtime.threads, available_cores())) if is_cpu else 1.0
    step = config.train.batch_size // processes * sequence + update
    return StepTime(waiting * step, waiting * sequence / (3 * context * processes), measured is not None)


def plan_runtime(config: RuntimeConfig, processes: int, flops: float) -> tuple[Runtime, bool]:
    """Return the runtime of each process of a run that computes `flops` FLOP, and whether its device is available."""
    threads = min(torch.get_num_threads(), max(1, available_cores() // processes))  # workers start with their share
    chosen = config.model_copy(update={"threads": threads} if config.threads == "auto" else {})
    flops /= processes
    try:
        device = pick_device(config.device, local_rank=0 if processes > 1 else None)
        return choose_runtime(chosen.model_copy(update={"device": device}), None, flops=flops), True
    except DeviceError:
        dtype = "bfloat16" if config.dtype == "auto" else config.dtype
        return Runtime(config.device, dtype, False, threads), False


def _fit(config: RunConfig, free: int | None, needs: Callable[[RunConfig, int], Memory]) -> Memory:
    """Return what a run `needs`, whether it fits in `free` bytes, and the settings that make it fit."""
    train, shard = config.train, config.train.batch_size // config.train.shards
    memory = needs(config, train.sequences_at_once)
    if free is None:
        return memory
    one, most = needs(config, 1).peak, needs(config, shard).peak
    each = max(1, (most - one) // max(1, shard - 1))
    largest = largest_micro_batch(config, 1 + int(SPARING * free - one) // each)
    settings: tuple[str, ...] = ()
    if memory.peak > free and largest:
        settings = (f"train.micro_batch_size={largest}",)
    elif memory.peak > free and not config.model.is_recurrent:
        sparing = config.runtime.model_copy(update={"activation_checkpointing": True})
        if needs(config.model_copy(update={"runtime": sparing}), 1).peak <= free:
            settings = ("train.micro_batch_size=1", "runtime.activation_checkpointing=true")
    return replace(memory, fits=memory.peak <= free, largest_micro_batch=largest, settings=settings)
