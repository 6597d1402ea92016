"""The tensors of a run, and what one step does with them.

A learner knows no folder, no clock and no metrics. Methods marked "collective" must be called by every process.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from minigpt.config.schema import RunConfig
from minigpt.errors import CheckpointError, escape
from minigpt.model.device import Runtime, choose_runtime, configure_torch, pick_device, reseed
from minigpt.model.gpt import use_kernels
from minigpt.model.load import build_model
from minigpt.model.memory import backward_bytes, check_memory, training_memory
from minigpt.model.size import count_parameters, training_flops
from minigpt.seeds import mix_seed
from minigpt.storage.checkpoint import Arrays, Checkpoint, Snapshot, load_optimizer, read_checkpoint
from minigpt.storage.metadata import Environment
from minigpt.text.batches import batch_at
from minigpt.text.dataset import TokenDataset
from minigpt.text.tokenizer import Ids
from minigpt.training.optim import Optimizer
from minigpt.training.parallel import ONE, Processes
from minigpt.training.schedule import run_steps

Loss = Callable[[Tensor, Tensor], Tensor]
"""The mean loss of targets (B, T) given inputs (B, T)."""


class Learner:
    """A model and its optimizer, and how they compute. All processes hold the same numbers.

    Creating a learner is collective.

    Args:
        snapshot: What replaces the random weights and the empty optimizer state. Only the main process needs it.
    """

    def __init__(
        self,
        config: RunConfig,
        vocab_size: int,
        runtime: Runtime,
        *,
        snapshot: Snapshot | None = None,
        processes: Processes = ONE,
    ) -> None:
        self.config, self.vocab_size, self.runtime, self.processes = config, vocab_size, runtime, processes
        self.parameter_count = count_parameters(config.model, vocab_size)
        self.flops_per_token = training_flops(config.model, vocab_size)
        configure_torch(runtime)
        torch.manual_seed(mix_seed(config.train.seed, "weights"))
        built = build_model(config.model, vocab_size)
        self.model = built if runtime.device == "cpu" else built.to(runtime.device)  # fake tensors cannot move
        use_kernels(self.model, runtime.model_kernels)
        self.optimizer = Optimizer(self.model, config.optim, runtime.torch_dtype)
        self.loss: Loss = self.mean_loss
        """`mean_loss`: as it is, compiled, or recorded as a CUDA graph."""
        if snapshot or processes.size > 1:
            self._set_tensors(snapshot)

    def _set_tensors(self, snapshot: Snapshot | None) -> None:
        """Give every process the tensors of the main process: those of `snapshot`, or its random weights (collective).

        Raises CheckpointError if a name or a shape does not fit.
        """
        processes, weights = self.processes, self.model.state_dict()
        has_state = processes.share(bool(snapshot and snapshot.optimizer))  # before the first step, the state is empty
        state = self.optimizer.create_state() if has_state else {}

        def copy() -> None:
            if snapshot:
                copy_arrays(snapshot.weights, weights)
                copy_arrays(snapshot.optimizer, state)

        processes.together(copy)
        processes.broadcast([*weights.values(), *state.values()])

    def snapshot(self, *, with_optimizer: bool = True) -> Snapshot:
        """Return copies of the weights, and of the optimizer state if `with_optimizer`, on the host."""
        state = self.optimizer.state_dict() if with_optimizer else {}
        return Snapshot(to_arrays(self.model.state_dict()), to_arrays(state))

    def environment(self) -> Environment:
        """Return facts outside the configuration that affect the last bits of a result."""
        sums = "exact" if self.processes.is_exact else f"all-reduce of {self.processes.size} processes"
        return self.runtime.environment().model_copy(update={"sums": sums})

    def use_loss(self, loss: Loss) -> None:
        """Compute losses with what `choose_loss` returned, and record whether it is compiled."""
        self.loss = loss
        self.runtime = replace(self.runtime, compile=self.runtime.compile and loss != self.mean_loss)
        configure_torch(self.runtime)

    def mean_loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the mean cross entropy in nats of the targets y (B, T) given the inputs x (B, T)."""
        with self.runtime.autocast():
            logits = self.model(x)  # (B, T, V)
        return F.cross_entropy(logits.float().flatten(0, 1), y.flatten())

    def sequence_bytes(self) -> int:
        """Return the activations that a step holds for each sequence of a micro-batch, in bytes."""
        ids = torch.zeros(1, self.config.model.context, dtype=torch.long, device=self.runtime.device)
        return backward_bytes(lambda: self.mean_loss(ids, ids), list(self.model.parameters()))

    def check_fit(self) -> str:
        """Return the warning of `check_memory` for the memory that is still to be allocated (collective)."""
        config, processes, device = self.config, self.processes, self.runtime.device
        memory = training_memory(config, self.vocab_size, device, self.sequence_bytes(), processes=processes.size)
        rest = replace(memory, weights=0, optimizer=0 if self.optimizer.state_dict() else memory.optimizer)
        what = f"training with {config.train.sequences_at_once} sequences at once"
        return processes.together(lambda: check_memory(what, rest, device, config))

    def step(self, tokens: Ids, number: int, lr_factor: float) -> Tensor:
        """Make one step (collective).

        Args:
            tokens: The training tokens (N,).
            number: The number of steps before this step. It decides the batch and the dropout masks.
            lr_factor: The learning rate as a fraction of its peak.

        Returns:
            The mean loss in nats and the norm of all gradients before clipping (2,), on the device: reading them waits
            for it. If either is not finite, the weights are lost.
        """
        train, runtime, parameters = self.config.train, self.runtime, self.optimizer.parameters
        part = self.processes.part(train.batch_size)
        batch = batch_at(tokens, self.config.model.context, train.batch_size, train.seed, number, part=part)

        def backward(x: Tensor, y: Tensor, shard: int) -> Tensor:
            reseed(runtime, mix_seed(train.seed, "dropout", number, shard))
            self.optimizer.zero_grad()
            total = torch.zeros((), device=x.device)
            for x_part, y_part in zip(x.split(train.sequences_at_once), y.split(train.sequences_at_once), strict=True):
                loss = self.loss(x_part, y_part) * (len(x_part) / train.batch_size)
                loss.backward()
                total += loss.detach()
            return total

        x, y = (ids.to(runtime.device) for ids in batch)  # (B, T) each
        loss = self.processes.add_shards(train.shards, backward, x, y, parameters)
        norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        if max_norm := self.config.optim.grad_clip:
            torch.nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)
        self.optimizer.step(lr_factor)
        return torch.stack((loss, norm))


def copy_arrays(arrays: Arrays, tensors: Mapping[str, Tensor]) -> None:
    """Copy arrays into tensors of the same names and shapes. Raises CheckpointError if they do not fit."""
    wrong = arrays.keys() ^ tensors.keys() or {name for name in arrays if arrays[name].shape != tensors[name].shape}
    if wrong:
        raise CheckpointError(f"cannot resume: {escape(min(wrong))} of the checkpoint does not fit the model")
    for name, tensor in tensors.items():
        tensor.copy_(torch.tensor(arrays[name]))


def to_arrays(tensors: Mapping[str, Tensor]) -> Arrays:
    """Return copies of tensors on the host."""
    return {name: tensor.detach().to("cpu", copy=True).numpy() for name, tensor in tensors.items()}


def make_learner(
    config: RunConfig,
    data: TokenDataset,
    resume: Checkpoint | None = None,
    *,
    saved: Environment | None = None,
    start: Checkpoint | None = None,
    processes: Processes = ONE,
) -> Learner:
    """Return the learner of a new run, perhaps with `start`'s weights, or of a run that resumes (collective).

    Only the main process reads tensors. If a `Checkpoint` has no weights, they come from its folder. `saved` is the
    environment to compute in, if no run resumes.

    Raises:
        DeviceError: The device is not available.
        InsufficientMemoryError: The model does not fit.
        CheckpointError: The tensors of the checkpoint do not fit, or its optimizer state is missing.
    """
    steps, vocab_size = run_steps(config, len(data.train)), data.tokenizer.vocab_size
    saved = resume.metadata.runtime if resume else saved
    device = processes.together(lambda: pick_device(config.runtime.device, saved, processes.local_rank))
    memory = training_memory(config, vocab_size, device, processes=processes.size)
    what = f"training a model of {count_parameters(config.model, vocab_size):,} parameters"
    processes.together(lambda: check_memory(what, memory, device, config))
    settings = config.runtime.model_copy(update={"device": device})
    flops = steps * config.tokens_per_step * training_flops(config.model, vocab_size)
    to_compile = 0 if config.model.is_recurrent else flops  # PyTorch does not compile recurrent layers
    runtime = replace(processes.share(choose_runtime(settings, saved, flops=to_compile)), device=device)
    snapshot = processes.together(lambda: _read(resume, start) if processes.is_main else None)
    return Learner(config, vocab_size, runtime, snapshot=snapshot, processes=processes)


def _read(resume: Checkpoint | None, start: Checkpoint | None) -> Snapshot | None:
    """Return the tensors that a run begins with, or None if they are random."""
    source = resume or start
    if source is None:
        return None
    state = load_optimizer(resume) if resume else {}
    if resume and not state and resume.metadata.step > 0:
        raise CheckpointError(f"cannot resume from {resume.path}: optimizer state is missing")
    return Snapshot(source.weights or read_checkpoint(source.path).weights, state)
