"""What happens just before the first step of a process: report, check that a batch fits, compile or record."""

from collections.abc import Callable
from dataclasses import replace

import torch

from minigpt.model.gpt import GPT
from minigpt.model.memory import backward_bytes, check_memory, training_memory
from minigpt.text.batches import batch_at
from minigpt.text.tokenizer import Ids
from minigpt.training.compilation import Loss, compile_loss, is_recordable, record_loss
from minigpt.training.learner import Learner

Log = Callable[[str], None]


def prepare_learner(learner: Learner, tokens: Ids, step: int, log: Log) -> Loss:
    """Report what runs where, check that a batch fits, and return the loss to use for `tokens` (N,) (collective)."""
    processes = learner.processes
    several = f"{processes.size} processes, each on " if processes.size > 1 else ""
    log(f"{learner.parameters:,} parameters on {several}{learner.runtime.describe()}")
    if step:
        log(f"resuming at step {step}")
    if learner.is_fsdp:
        log("fsdp: no samples or attention during training; rounding depends on the processes")
    elif warning := check_fit(learner):
        log(warning)
    if not (processes.is_exact or learner.is_fsdp):
        log("runtime.exact=false: rounding depends on the number of processes")
    return choose_loss(learner, tokens, step, log)


def check_fit(learner: Learner) -> str:
    """Check that all that is still to allocate fits, as `check_memory` does (collective)."""
    config, is_resumed = learner.config, bool(learner.optimizer.state_dict())
    device, processes = learner.runtime.device, learner.processes
    memory = training_memory(config, learner.vocab_size, device, sequence_bytes(learner), processes=processes.size)
    rest = replace(memory, weights=0, average=0, optimizer=0 if is_resumed else memory.optimizer)
    what = f"training with {config.train.sequences_at_once} sequences at once"
    return processes.together(lambda: check_memory(what, rest, device, config))


def sequence_bytes(learner: Learner) -> int:
    """Return the activations that a step holds for each sequence of a micro-batch, in bytes."""
    model, weights = learner.model, list(learner.model.parameters())
    ids = torch.zeros(1, model.config.context, dtype=torch.long, device=learner.runtime.device)
    size = backward_bytes(lambda: learner.mean_loss(ids, ids), weights)
    if isinstance(model, GPT) and model.checkpoints_activations:  # the backward pass recomputes one block at a time
        x, block = model.embed(ids), model.blocks[0]
        with learner.runtime.autocast():
            size += backward_bytes(lambda: block(x, model.cos_sin), weights)
    return size


def choose_loss(learner: Learner, tokens: Ids, step: int, log: Log) -> Loss:
    """Return the loss compiled if the runtime says so, and if that works and pays on every process (collective).

    A resumed run keeps the decision, because it changes the bits. Without compilation, a GPU records the loss, or
    raises UserError.
    """
    config, runtime = learner.config, learner.runtime
    is_recorded = is_recordable(config, runtime)
    if not (is_recorded or runtime.compile):
        return learner.mean_loss
    x, y = batch_at(tokens, config.model.context, config.train.sequences_at_once, seed=0, step=0)
    example = x.to(runtime.device), y.to(runtime.device)
    if is_recorded:
        return record_loss(learner.mean_loss, learner.model, example)
    is_optional = config.runtime.compile == "auto" and step == 0
    loss = compile_loss(learner.mean_loss, learner.model, example, is_optional=is_optional, log=log)
    learner.optimizer.zero_grad()  # compiling ran a backward pass
    return loss if all(learner.processes.gather(loss != learner.mean_loss)) else learner.mean_loss
