"""What happens just before the first step of a process: report, check that a batch fits, measure, compile."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from torch import Tensor

from minigpt.model.device import configure_torch, measure_matmul
from minigpt.model.memory import backward_bytes, check_batch
from minigpt.text.batches import batch_at
from minigpt.training.compilation import compile_loss

if TYPE_CHECKING:
    from minigpt.training.loop import Training


def prepare(training: Training) -> None:
    """Report what runs where, check that a batch fits, and compile the loss if chosen."""
    processes, log = training.processes, training.metrics.message
    several = f"{processes.size} processes, each on " if processes.size > 1 else ""
    log(f"{training.parameters:,} parameters on {several}{training.runtime.describe()}")
    if training.state.step:
        log(f"resuming at step {training.state.step}")
    if training.is_sharded:
        log("sharded: no samples, attention or histograms during training; rounding depends on the processes")
    else:
        check_fit(training)
    if not (processes.is_exact or training.is_sharded):
        log("runtime.exact=false: rounding depends on the number of processes")
    training.matmul_speed = measure_matmul(training.runtime)
    compile_training(training)
    if training.drift:
        log(f"results may differ in the last digits from here on: {', '.join(training.drift)}")


def check_fit(training: Training) -> None:
    """Raise InsufficientMemoryError if the gradients, the optimizer state and a micro-batch do not fit in memory."""
    weights = list(training.model.parameters())
    # Still to allocate: gradients, and the two moments of the optimizer unless they were loaded.
    copies = 1 if training.optimizer.state_dict() else 3
    fixed = copies * sum(weight.nbytes for weight in weights)
    one = example_batch(training, 1, training.config.model.context)
    each = backward_bytes(lambda: training.mean_loss(*one), weights)
    training.processes.together(lambda: check_batch(training.config, training.runtime.device, fixed, each))


def compile_training(training: Training) -> None:
    """Compile the loss if the runtime says so. A resumed run keeps that decision, because it changes the bits."""
    if not training.runtime.compile:
        return
    config = training.config
    example = example_batch(training, config.train.sequences_at_once, config.model.context)
    is_optional = config.runtime.compile == "auto" and training.state.step == 0
    loss = compile_loss(training.mean_loss, example, is_optional=is_optional, log=training.metrics.message)
    training.optimizer.zero_grad()  # compiling ran a backward pass
    is_kept = all(training.processes.gather(loss != training.mean_loss))
    training.loss = loss if is_kept else training.mean_loss
    training.runtime = replace(training.runtime, compile=is_kept)
    configure_torch(training.runtime)


def example_batch(training: Training, sequences: int, length: int) -> tuple[Tensor, Tensor]:
    """Return inputs and targets (sequences, length) to compile for and to measure with."""
    x, y = batch_at(training.data.train, length, sequences, seed=0, step=0)
    return x.to(training.runtime.device), y.to(training.runtime.device)
