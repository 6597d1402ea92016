"""The tensors of a run, and what one step does with them: gradients, and an update.

A learner knows no folder, no clock and no metrics. Methods marked "collective" must be called by every process.
"""

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from minigpt.config.schema import RunConfig
from minigpt.model.device import Runtime, choose_runtime, configure_torch, pick_device, reseed
from minigpt.model.gpt import GPT, use_kernels
from minigpt.model.load import Model, build_model, load_weights
from minigpt.model.size import count_parameters, training_flops
from minigpt.seeds import mix_seed
from minigpt.storage.checkpoint import Arrays, Checkpoint
from minigpt.storage.metadata import Environment
from minigpt.text.batches import batch_at
from minigpt.text.tokenizer import Ids
from minigpt.training.compilation import Loss
from minigpt.training.dtensors import add_accumulated, is_dtensor, local, whole
from minigpt.training.optim import Optimizer
from minigpt.training.parallel import ONE, Processes, add_shards, choose_fsdp
from minigpt.training.schedule import RunLength

RAW = "weights/"
"""Prefix of the raw weights in the state of the optimizer, if the saved weights are their moving average."""


class Learner:
    """A model, its moving average and its optimizer, and how they compute.

    Args:
        config: The settings of the run.
        vocab_size: The number of tokens that the model knows.
        length: The length of the run. It decides whether compiling pays.
        saved: The environment of a run that resumes. Its decisions replace "auto".
        start: A checkpoint whose weights replace the random ones.
        processes: The processes that train together.

    Raises:
        DeviceError: The device is not available.
        InsufficientMemoryError: The model does not fit.
    """

    def __init__(
        self,
        config: RunConfig,
        vocab_size: int,
        length: RunLength,
        *,
        saved: Environment | None = None,
        start: Checkpoint | None = None,
        processes: Processes = ONE,
    ) -> None:
        self.config, self.vocab_size, self.processes = config, vocab_size, processes
        self.parameters = count_parameters(config.model, vocab_size)
        self.flops_per_token = training_flops(config.model, vocab_size)
        device = processes.together(lambda: pick_device(config.runtime.device, saved, processes.local_rank))
        self.is_fsdp = processes.together(lambda: choose_fsdp(processes.size, config, self.parameters, device))
        self.runtime = self._choose_runtime(device, length, saved)
        configure_torch(self.runtime)
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
        """`mean_loss`, or `mean_loss` compiled."""

    def _choose_runtime(self, device: str, length: RunLength, saved: Environment | None) -> Runtime:
        train, own = self.config.train, self.config.runtime.model_copy(update={"device": device})
        flops = (length.steps or 0) * train.batch_size * self.config.model.context * self.flops_per_token
        chosen = self.processes.share(choose_runtime(own, saved, flops=flops, seconds=length.seconds))
        return replace(chosen, device=device, compile=chosen.compile and not self.is_fsdp)

    def _place(self, built: Model) -> Model:
        """Return a model on the device of this process, with the weights that `built` has on the main process."""
        if self.is_fsdp:
            from minigpt.training.fsdp import build_fsdp

            model: Model = build_fsdp(self.config.model, self.vocab_size, self.runtime, self.processes)
        else:
            model = built.to(self.runtime.device)
        use_kernels(model, self.runtime.model_kernels)
        if isinstance(model, GPT):
            model.checkpoints_activations = self.config.runtime.activation_checkpointing
        if self.processes.size > 1:
            self.processes.distribute(built.state_dict(), model.state_dict())
        return model

    @property
    def best_model(self) -> Model:
        """The model to evaluate, sample and save: the moving average, if there is one."""
        return self.average or self.model

    def environment(self) -> Environment:
        """Return everything outside the configuration that affects the last bits of a result."""
        kind = "fsdp" if self.is_fsdp else "" if self.processes.is_exact else "all-reduce"
        sums = f"{kind} of {self.processes.size} processes" if kind else "exact"
        return self.runtime.environment().model_copy(update={"sums": sums})

    def use(self, loss: Loss) -> None:
        """Compute losses with `loss` from here on: `mean_loss`, or `mean_loss` compiled."""
        self.loss = loss
        self.runtime = replace(self.runtime, compile=loss != self.mean_loss)
        configure_torch(self.runtime)

    # --- a step ------------------------------------------------------------------------------------------

    def mean_loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the mean cross entropy of the targets y (B, T) given the inputs x (B, T), in nats."""
        with self.runtime.autocast():
            logits = self.model(x)  # (B, T, V)
        return F.cross_entropy(logits.float().flatten(0, 1), y.flatten())

    def backward(self, tokens: Ids, step: int) -> tuple[float, float]:
        """Compute the gradients of the mean loss over the batch of a step (collective).

        All processes have the same gradients, or, with FSDP2, their rows of them.

        Args:
            tokens: The training text (N,).
            step: The number of steps before this one. It decides the batch and the dropout masks.

        Returns:
            The mean loss in nats, and the norm of all gradients before clipping.
        """
        train, context, processes = self.config.train, self.config.model.context, self.processes
        shards, each = processes.shards(train.shards), train.batch_size // train.shards  # sequences in a shard
        part = slice(shards.start * each, shards.stop * each)
        batch = batch_at(tokens, context, train.batch_size, train.seed, step, part=part)
        xs, ys = (ids.to(self.runtime.device).split(each) for ids in batch)  # for each shard

        def accumulate(shard: int) -> Tensor:
            reseed(self.runtime, mix_seed(train.seed, "dropout", step, shard))
            return self._accumulate(xs[shard - shards.start], ys[shard - shards.start])

        self.optimizer.zero_grad()
        loss = self._add_up(shards, accumulate)
        norm = whole(torch.nn.utils.get_total_norm([p.grad for p in self.model.parameters() if p.grad is not None]))
        loss_value, norm_value = torch.stack((loss, norm)).tolist()  # the only wait for the device in a step
        return loss_value, norm_value

    def _accumulate(self, x: Tensor, y: Tensor) -> Tensor:
        """Add the gradients of a shard, one micro-batch at a time. Return its part of the mean loss of the batch."""
        train = self.config.train
        total = torch.zeros((), device=x.device)
        for x_part, y_part in zip(x.split(train.sequences_at_once), y.split(train.sequences_at_once), strict=True):
            loss = self.loss(x_part, y_part)
            if len(x_part) < train.batch_size:
                loss = loss * (len(x_part) / train.batch_size)
            loss.backward()
            total += loss.detach()
        return total

    def _add_up(self, shards: range, accumulate: Callable[[int], Tensor]) -> Tensor:
        """Add the gradients and losses of all shards of all processes (collective). Return the loss."""
        if self.is_fsdp:
            loss = add_accumulated(self.model, shards, accumulate)
            self.processes.sum([loss])
            return loss
        parameters = list(self.optimizer.names)

        def gradients(shard: int) -> list[Tensor]:
            self.optimizer.zero_grad()
            loss = accumulate(shard)
            return [*(p.grad for p in parameters if p.grad is not None), loss]

        *sums, loss = add_shards(shards.start, len(shards), gradients)
        self.processes.sum([*sums, loss])
        for parameter, total in zip(parameters, sums, strict=True):
            parameter.grad = total
        return loss

    def update(self, lr_factor: float, gradient_norm: float, step: int) -> bool:
        """Clip the gradients, and update the weights and their average. Return whether gradients were clipped.

        Args:
            lr_factor: The learning rate as a fraction of its peak.
            gradient_norm: The norm of all gradients.
            step: The number of steps, this one included.
        """
        max_norm = self.config.optim.grad_clip or math.inf
        is_clipped = gradient_norm > max_norm
        if is_clipped:
            torch.nn.utils.clip_grads_with_norm_(self.model.parameters(), max_norm, torch.tensor(gradient_norm))
        self.optimizer.step(lr_factor)
        if self.average is not None:
            decay = min(self.config.train.ema, step / (step + 9))  # faster at first, when the weights move far
            with torch.no_grad():
                averages, weights = (list(map(local, model.parameters())) for model in (self.average, self.model))
                torch._foreach_lerp_(averages, weights, 1 - decay)
        return is_clipped

    # --- saving ------------------------------------------------------------------------------------------

    def take(self) -> tuple[Arrays, Arrays] | None:
        """Return the weights and the optimizer state that this process saves. None if one is not finite."""
        weights, state = self.model.state_dict(), self.optimizer.state_dict()
        if self.average is not None:
            state |= {f"{RAW}{name}": tensor for name, tensor in weights.items()}
            weights = self.average.state_dict()

        def arrays(tensors: Mapping[str, Tensor]) -> Arrays:
            own = {name: tensor for name, tensor in tensors.items() if self.processes.is_main or is_dtensor(tensor)}
            return {name: local(tensor).cpu().numpy() for name, tensor in own.items()}

        is_finite = all(bool(local(tensor).isfinite().all()) for tensor in (*weights.values(), *state.values()))
        return (arrays(weights), arrays(state)) if is_finite else None

    def give(self, weights: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
        """Load what `take` returned on all processes together (collective).

        Only the main process needs the numbers. On the others, the shapes of `state` are enough.

        Raises:
            ValueError, KeyError: Something does not fit the model.
        """
        raw = {name.removeprefix(RAW): tensor for name, tensor in state.items() if name.startswith(RAW)}
        self.processes.distribute(raw or weights, self.model.state_dict())
        moments = {name: tensor for name, tensor in state.items() if not name.startswith(RAW)}
        self.optimizer.load_state_dict(moments, self.processes)
        if self.average is not None:
            self.processes.distribute(weights, self.average.state_dict())
