"""The time of a run's steps on this machine."""

from dataclasses import dataclass, replace
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch

from minigpt.config.schema import RunConfig, RuntimeConfig
from minigpt.errors import DeviceError, InsufficientMemoryError
from minigpt.model.device import Runtime, choose_runtime, measure_matmul, pick_device
from minigpt.model.size import training_flops
from minigpt.text.tokenizer import Ids
from minigpt.training.compilation import choose_loss, is_recordable
from minigpt.training.learner import Learner
from minigpt.world import available_cores


@dataclass(frozen=True)
class StepTime:
    """The time of a run's parts, in seconds."""

    step: float
    evaluated_token: float
    """About a third of the time of training on a token."""
    is_measured: bool


def time_step(config: RunConfig, vocab_size: int, runtime: Runtime, processes: int, seconds: float) -> StepTime:
    """Measure a step's time within about `seconds`. Estimate it if they are too few or the model does not fit."""
    context, is_cpu = config.model.context, runtime.device == "cpu"
    estimate = 3 * training_flops(config.model, vocab_size) * context / measure_matmul(runtime)
    affordable = seconds / 4 / estimate  # sequences, to measure several steps
    sequences = max(1, min(config.train.sequences_at_once, int(affordable)))
    measured = measure_step(config, vocab_size, runtime, seconds, sequences) if affordable >= 1 / 20 else None
    sequence, update = measured or (estimate, 0.0)
    # One process was measured alone. Together, processes wait if they have more threads than there are cores.
    waiting = max(1.0, processes * runtime.threads / max(runtime.threads, available_cores())) if is_cpu else 1.0
    step = config.train.batch_size // processes * sequence + update
    return StepTime(waiting * step, waiting * sequence / (3 * context * processes), measured is not None)


def measure_step(
    config: RunConfig, vocab_size: int, runtime: Runtime, seconds: float, sequences: int
) -> tuple[float, float] | None:
    """Measure steps of `sequences` sequences for about `seconds`, without compilation.

    Return the seconds of the passes of one sequence, and those of an update. None if the model does not fit.
    """
    batch = {"batch_size": sequences, "micro_batch_size": None, "shards": 1}
    compile = config.runtime.compile if is_recordable(config, runtime) else False  # "auto" records
    small = changed(config, train=batch, runtime={"compile": compile})
    tokens = np.random.default_rng(0).integers(vocab_size, size=(sequences + 2) * config.model.context)
    try:
        learner = Learner(small, vocab_size, replace(runtime, compile=False))
        learner.check_fit()
        learner.use_loss(choose_loss(learner, tokens, lambda line: None))
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
    update, moments = learner.optimizer.step, [perf_counter()]

    def note() -> None:
        learner.model.token_embedding.weight[0, 0].item()  # waits for the device
        moments.append(perf_counter())

    def timed(factor: float) -> None:
        note()
        update(factor)

    learner.optimizer.step = timed  # type: ignore[method-assign]
    learner.step(tokens, number, 1.0)
    learner.optimizer.step = update  # type: ignore[method-assign]
    note()
    started, middle, end = moments
    return middle - started, end - middle


def plan_runtime(config: RuntimeConfig, processes: int, flops: float) -> tuple[Runtime, bool]:
    """Return the runtime of each process of a run that computes `flops` FLOP, and whether its device is available."""
    threads = min(torch.get_num_threads(), max(1, available_cores() // processes))  # processes start with their share
    chosen = config.model_copy(update={"threads": threads} if config.threads == "auto" else {})
    try:
        device = pick_device(config.device, local_rank=0 if processes > 1 else None)
        return choose_runtime(chosen.model_copy(update={"device": device}), None, flops=flops), True
    except DeviceError:
        dtype = "bfloat16" if config.dtype == "auto" else config.dtype
        return Runtime(config.device, dtype, False, threads), False


def changed(config: RunConfig, **sections: dict[str, Any]) -> RunConfig:
    """Return `config` with other settings in some `sections`. They are not checked."""
    return config.model_copy(
        update={name: getattr(config, name).model_copy(update=values) for name, values in sections.items()}
    )
