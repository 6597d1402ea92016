"""The time of a training step, before a run. No text is read.

It comes from models with one and two layers, because each further layer takes as much as the second.
"""

import time
from dataclasses import replace
from statistics import median
from typing import NamedTuple

import numpy as np

from minigpt.config.schema import RunConfig
from minigpt.errors import InsufficientMemoryError
from minigpt.model.device import Runtime, measure_matmul
from minigpt.model.size import training_flops
from minigpt.text.tokenizer import Ids
from minigpt.training.compilation import is_recordable
from minigpt.training.learner import Learner
from minigpt.training.preparation import prepare_learner


class StepSeconds(NamedTuple):
    """The seconds of a step's parts."""

    sequence: float
    """The forward and backward pass of one sequence."""
    update: float


def measure_step(config: RunConfig, vocab_size: int, runtime: Runtime, seconds: float) -> StepSeconds | None:
    """Measure steps of the first layers for about so many seconds, without compilation.

    Return None if that takes much longer, or does not fit into memory.
    """
    layers = range(1, min(2, config.model.n_layer) + 1)
    most = first_layers(config, layers[-1])
    flops = training_flops(most.model, vocab_size) * most.tokens_per_step
    affordable = seconds / 4 * measure_matmul(runtime) / 3 / flops  # as in `choose_runtime`
    if affordable < 1 / 20:
        return None
    sequences = max(1, min(config.train.sequences_at_once, int(affordable)))
    compile = config.runtime.compile if is_recordable(config, runtime) else False  # "auto" records
    small = config.model_copy(update={"runtime": config.runtime.model_copy(update={"compile": compile})})
    tokens = np.random.default_rng(0).integers(vocab_size, size=(sequences + 2) * config.model.context)
    learners = list[Learner]()
    try:
        for count in layers:
            learner = Learner(first_layers(small, count, sequences), vocab_size, replace(runtime, compile=False))
            learner.use(prepare_learner(learner, tokens, 0, lambda line: None))
            for step in range(2):  # the first steps allocate memory
                timed_step(learner, tokens, step)
            learners.append(learner)
    except InsufficientMemoryError:
        return None
    rounds, end = list[list[StepSeconds]](), time.perf_counter() + seconds
    while len(rounds) < 2 or time.perf_counter() < end:
        rounds.append([timed_step(learner, tokens, 2 + len(rounds)) for learner in learners])
    parts = [StepSeconds(*map(median, zip(*column, strict=True))) for column in zip(*rounds, strict=True)]
    pairs = zip(parts[0], parts[-1], strict=True)
    return StepSeconds(*(extrapolate(one, two, config.model.n_layer) for one, two in pairs))


def timed_step(learner: Learner, tokens: Ids, step: int) -> StepSeconds:
    """Make a step, and return its times."""
    started = time.perf_counter()
    _, norm = learner.backward(tokens, step)  # waits for the device
    middle = time.perf_counter()
    learner.update(1.0, norm, step + 1)
    learner.model.token_embedding.weight[0, 0].item()  # waits for the device
    return StepSeconds((middle - started) / learner.config.train.batch_size, time.perf_counter() - middle)


def first_layers(config: RunConfig, layers: int, sequences: int = 1) -> RunConfig:
    """Return a run of the first layers, with so many sequences in each step, and no average of the weights."""
    model = config.model.model_copy(update={"n_layer": layers})
    batch = {"batch_size": sequences, "micro_batch_size": None, "shards": 1, "ema": 0.0}
    train = config.train.model_copy(update=batch)
    return config.model_copy(update={"model": model, "train": train})


def extrapolate(first: float, second: float, layers: int) -> float:
    """Return what so many layers take, from what one and two take."""
    return first + (layers - 1) * max(0, second - first)
