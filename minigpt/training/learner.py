"""The tensors of a run, and what one step does with them.

A learner knows no folder, no clock and no metrics. Methods marked "collective" must be called by every process.
"""

import copy
from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from minigpt.config.schema import RunConfig
from minigpt.model.device import Runtime, configure_torch, reseed
from minigpt.model.gpt import GPT, use_kernels
from minigpt.model.load import Model, build_model, load_weights
from minigpt.model.size import count_parameters, training_flops
from minigpt.seeds import mix_seed
from minigpt.storage.checkpoint import Checkpoint
from minigpt.storage.metadata import Environment
from minigpt.text.batches import batch_at
from minigpt.text.tokenizer import Ids
from minigpt.training.compilation import Loss
from minigpt.training.dtensors import local, whole
from minigpt.training.optim import Optimizer
from minigpt.training.parallel import ONE, Processes, add_shards


class Learner:
    """A model, its moving average and its optimizer, and how they compute. Creating one is collective.

    Args:
        start: A checkpoint whose weights replace the random weights.
        is_fsdp: Whether each process holds only some rows of every tensor.
    """

    def __init__(
        self,
        config: RunConfig,
        vocab_size: int,
        runtime: Runtime,
        *,
        start: Checkpoint | None = None,
        processes: Processes = ONE,
        is_fsdp: bool = False,
    ) -> None:
        self.config, self.vocab_size, self.processes = config, vocab_size, processes
        self.parameters = count_parameters(config.model, vocab_size)
        self.flops_per_token = training_flops(config.model, vocab_size)
        self.runtime, self.is_fsdp = runtime, is_fsdp
        configure_torch(runtime)
        torch.manual_seed(mix_seed(config.train.seed, "weights"))
        with torch.device("meta" if self.is_fsdp and not processes.is_main else "cpu"):
            built = build_model(config.model, vocab_size)
        if start and processes.is_main:
            load_weights(built, start)
        self.model = self._place(built)
        self.average: Model | None = None
        if config.train.ema:
            self.average = self._place(built) if self.is_fsdp else copy.deepcopy(self.model)
            self.average.eval().requires_grad_(False)
        self.optimizer = Optimizer(self.model, config.optim, self.runtime.torch_dtype)
        self.loss: Loss = self.mean_loss
        """`mean_loss`, or `mean_loss` compiled or recorded."""

    def _place(self, built: Model) -> Model:
        """Return a model on the device of this process, with the weights that `built` has on the main process."""
        if self.is_fsdp:
            from minigpt.training.fsdp import build_fsdp

            model: Model = build_fsdp(self.config.model, self.vocab_size, self.runtime, self.processes)
        else:
            model = built if self.runtime.device == "cpu" else built.to(self.runtime.device)  # fake tensors cannot move
        use_kernels(model, self.runtime.model_kernels)
        if isinstance(model, GPT):
            model.checkpoints_activations = self.config.runtime.activation_checkpointing
        if self.processes.size > 1:
            self.processes.distribute(built.state_dict(), model.state_dict())
        return model

    @property
    def evaluated_model(self) -> Model:
        """The model to evaluate, sample and save: the moving average, if there is one."""
        return self.average or self.model

    def environment(self) -> Environment:
        """Return everything outside the configuration that affects the last bits of a result."""
        sums = "exact"
        if self.is_fsdp or not self.processes.is_exact:
            sums = f"{'fsdp' if self.is_fsdp else 'all-reduce'} of {self.processes.size} processes"
        return self.runtime.environment().model_copy(update={"sums": sums})

    def use(self, loss: Loss) -> None:
        """Compute losses with `loss` from here on: `mean_loss`, or `mean_loss` compiled or recorded."""
        self.loss = loss
        self.runtime = replace(self.runtime, compile=self.runtime.compile and loss != self.mean_loss)
        configure_torch(self.runtime)

    def mean_loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the mean cross entropy in nats of the targets y (B, T) given the inputs x (B, T) (collective)."""
        with self.runtime.autocast():
            logits = self.model(x)  # (B, T, V)
        return F.cross_entropy(logits.float().flatten(0, 1), y.flatten())

    def step(self, tokens: Ids, number: int, lr_factor: float) -> Tensor:
        """Make one step (collective).

        Args:
            tokens: The training text (N,).
            number: The number of steps before this step. It decides the batch and the dropout masks.
            lr_factor: The learning rate as a fraction of its peak.

        Returns:
            The mean loss in nats and the norm of all gradients before clipping (2,), on the device: reading them waits
            for it. If one is not finite, the weights are lost.
        """
        loss = self.compute_gradients(tokens, number)
        return torch.stack((loss, self.update(number, lr_factor)))

    def compute_gradients(self, tokens: Ids, number: int) -> Tensor:
        """Compute the gradients of the mean loss over the batch of a step, and return the loss (collective).

        All processes have the same gradients. With FSDP2, each process has its rows of the gradients.
        """
        train, processes = self.config.train, self.processes
        shards, shard_size = processes.shards(train.shards), train.batch_size // train.shards  # sequences in a shard
        part = slice(shards.start * shard_size, shards.stop * shard_size)
        batch = batch_at(tokens, self.config.model.context, train.batch_size, train.seed, number, part=part)
        xs, ys = (ids.to(self.runtime.device).split(shard_size) for ids in batch)  # for each shard

        def shard_backward(shard: int) -> Tensor:
            reseed(self.runtime, mix_seed(train.seed, "dropout", number, shard))
            return self._accumulate(xs[shard - shards.start], ys[shard - shards.start])

        self.optimizer.zero_grad()
        return self._fsdp_sum(shards, shard_backward) if self.is_fsdp else self._tree_sum(shards, shard_backward)

    def _accumulate(self, x: Tensor, y: Tensor) -> Tensor:
        """Add the gradients of a shard, one micro-batch at a time. Return the shard's part of the mean loss."""
        train = self.config.train
        total = torch.zeros((), device=x.device)
        for x_part, y_part in zip(x.split(train.sequences_at_once), y.split(train.sequences_at_once), strict=True):
            loss = self.loss(x_part, y_part)
            if len(x_part) < train.batch_size:
                loss = loss * (len(x_part) / train.batch_size)
            loss.backward()
            total += loss.detach()
        return total

    def _tree_sum(self, shards: range, shard_backward: Callable[[int], Tensor]) -> Tensor:
        """Add the gradients and losses of all shards of all processes in a fixed order. Return the loss."""
        parameters = list(self.optimizer.names)

        def gradients_and_loss(shard: int) -> list[Tensor]:
            self.optimizer.zero_grad()
            loss = shard_backward(shard)
            return [*(p.grad for p in parameters if p.grad is not None), loss]

        *sums, loss = add_shards(shards, gradients_and_loss)
        self.processes.sum([*sums, loss])
        for parameter, total in zip(parameters, sums, strict=True):
            parameter.grad = total
        return loss

    def _fsdp_sum(self, shards: range, shard_backward: Callable[[int], Tensor]) -> Tensor:
        """Let FSDP2 add the gradients of all shards, and exchange them after the last shard. Return the loss."""
        losses = []
        for shard in shards:
            self.model.set_requires_gradient_sync(shard == shards[-1])  # type: ignore[operator]
            losses.append(shard_backward(shard))
        loss = torch.stack(losses).sum()
        self.processes.sum([loss])
        return loss

    def update(self, number: int, lr_factor: float) -> Tensor:
        """Clip the gradients, update the weights and their average, and return the norm before (collective)."""
        parameters = list(self.optimizer.names)
        norm = whole(torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None]))
        if max_norm := self.config.optim.grad_clip:
            torch.nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)
        self.optimizer.step(lr_factor)
        if self.average is not None:
            decay = min(self.config.train.ema, (number + 1) / (number + 10))  # faster at first: the weights move far
            with torch.no_grad():
                averages, weights = (list(map(local, model.parameters())) for model in (self.average, self.model))
                torch._foreach_lerp_(averages, weights, 1 - decay)
        return norm
