"""The memory and time of a training step, before a run. No text is read.

Both come from models with one and two layers: each further layer takes as much as the second layer. Memory is
counted on fake tensors, which have shapes but no numbers. Time is measured.
"""

import math
import time
import weakref
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from minigpt.config.schema import RunConfig
from minigpt.model.device import Runtime, available_devices, configure_torch, measure_matmul
from minigpt.model.gpt import GPT, use_kernels
from minigpt.model.kernels import TORCH, sdpa_fused
from minigpt.model.load import build_model
from minigpt.model.memory import SPARING, free_memory_bytes
from minigpt.model.size import training_flops
from minigpt.training.compilation import Loss, is_recordable, record_loss
from minigpt.training.optim import Optimizer

LSTM_WORKSPACE = 15.3
"""Size of oneDNN's workspace for an LSTM layer on a CPU, as a multiple of the output. Measured: 15.1 to 15.6."""


class LiveMemory(TorchDispatchMode):
    """Counts the bytes of the tensors that the block creates, while they exist: `live`, and the `peak`.

    Fake tensors count in full, although they hold no numbers.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = self.peak = 0
        self.storages: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_iter(result):
            if isinstance(tensor, Tensor) and (storage := tensor.untyped_storage())._cdata not in self.storages:
                size = storage.nbytes()
                if func is torch.ops.aten.mkldnn_rnn_layer.default and not size:  # fake tensors lack the workspace
                    size = int(LSTM_WORKSPACE * result[0].nbytes)
                self._add(storage, size)
        return result

    def _add(self, storage: torch.UntypedStorage, size: int) -> None:
        def free(_: Any, key: int = storage._cdata) -> None:
            self.live -= size
            del self.storages[key]

        self.storages[storage._cdata] = weakref.ref(storage, free)
        self.live += size
        self.peak = max(self.peak, self.live)


class _Step:
    """One training step, on random tokens, of a new model that has only `layers` layers."""

    def __init__(self, config: RunConfig, vocab_size: int, runtime: Runtime, sequences: int, layers: int) -> None:
        self.model = build_model(config.model.model_copy(update={"n_layer": layers}), vocab_size)
        use_kernels(self.model, runtime.model_kernels)
        if isinstance(self.model, GPT):
            self.model.checkpoints_activations = config.runtime.activation_checkpointing
        self.optimizer = Optimizer(self.model, config.optim, runtime.torch_dtype)
        self.runtime, self.vocab_size, self.shape = runtime, vocab_size, (2, sequences, config.model.context)

    def batch(self) -> tuple[Tensor, Tensor]:
        x, y = torch.randint(self.vocab_size, self.shape, device=self.runtime.device)
        return x, y

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        with self.runtime.autocast():
            logits = self.model(x)
        return F.cross_entropy(logits.float().flatten(0, 1), y.flatten())

    def timed(self, loss: Loss) -> tuple[float, float]:
        """Return the seconds of a forward and backward pass, and of an update."""
        self.optimizer.zero_grad()
        started = time.perf_counter()
        loss(*self.batch()).backward()
        norm = torch.nn.utils.get_total_norm([p.grad for p in self.model.parameters() if p.grad is not None])
        norm.item()  # waits for the device
        middle = time.perf_counter()
        torch.nn.utils.clip_grads_with_norm_(self.model.parameters(), 1.0, norm)
        self.optimizer.step(1.0)
        self.model.token_embedding.weight[0, 0].item()
        return middle - started, time.perf_counter() - middle


@lru_cache
def count_step(config: RunConfig, vocab_size: int, runtime: Runtime, sequences: int, layers: int) -> dict[str, int]:
    """Return the bytes of a step with one micro-batch, by part, without allocating them.

    `first` is the peak of a forward and backward pass that creates the gradients, `more` of a pass that adds to them,
    and `update` of the optimizer. The peaks exclude what existed before, and the state of the optimizer.
    """
    if layers > 2:
        one, two = (count_step(config, vocab_size, runtime, sequences, n) for n in (1, 2))
        rates = {part: two[part] - one[part] for part in two}
        # A backward pass replaces a layer's activations with its gradients. The larger of both adds to the peak.
        rates |= {"first": max(rates["activations"], rates["gradients"]), "more": rates["activations"]}
        return {part: two[part] + (layers - 2) * rates[part] for part in two}
    from torch._subclasses.fake_tensor import FakeTensorMode

    is_gpu = runtime.device.startswith("cuda") and runtime.device in available_devices()
    place = runtime if is_gpu else replace(runtime, device="cpu")
    with FakeTensorMode(), torch.device(place.device), LiveMemory() as memory:
        step = _Step(config, vocab_size, place, sequences, layers)
        if place.device != runtime.device:  # a CPU keeps all attention weights for dropout, and a GPU none
            use_kernels(step.model, replace(TORCH, sdpa=lambda q, k, v, _: sdpa_fused(q, k, v, 0.0)))
        counts = {"weights": memory.live}
        for name in ("first", "more"):
            before = memory.peak = memory.live
            loss = step.loss(*step.batch())
            counts["activations"] = memory.live - before
            loss.backward()
            del loss
            counts[name] = memory.peak - before
        before = memory.peak = memory.live
        step.optimizer.step(1.0)
        counts |= {"optimizer": memory.live - before, "update": memory.peak - memory.live}
        return counts | {"gradients": before - counts["weights"]}


def measure_step(config: RunConfig, vocab_size: int, runtime: Runtime, seconds: float) -> tuple[float, float] | None:
    """Return the seconds of a forward and backward pass of a sequence, and of an update. None if it takes too long."""
    is_fast, runtime = is_recordable(config, runtime), replace(runtime, compile=False)
    configure_torch(runtime)
    layers = range(1, min(2, config.model.n_layer) + 1)
    flops = training_flops(config.model.model_copy(update={"n_layer": layers[-1]}), vocab_size) * config.model.context
    affordable = seconds / 4 * measure_matmul(runtime) / 3 / flops  # as in `choose_runtime`
    sequences = max(1, min(config.train.sequences_at_once, int(affordable)))
    needed = sum(count_step(config, vocab_size, runtime, sequences, layers[-1]).values())
    if affordable < 1 / 20 or needed > SPARING * (free_memory_bytes(runtime.device) or math.inf):
        return None
    steps = [_Step(config, vocab_size, runtime, sequences, n) for n in layers]
    losses = list[Loss]()
    for step in steps:
        step.model.to(runtime.device)
        losses.append(record_loss(step.loss, step.model, step.batch()) if is_fast else step.loss)
    end, times = time.perf_counter() + seconds, list[list[tuple[float, float]]]()
    while len(times) < 4 or time.perf_counter() < end:
        times.append([step.timed(loss) for step, loss in zip(steps, losses, strict=True)])
    parts = torch.tensor(times[2:]).median(0).values  # (layers, 2); the first rounds allocate memory
    compute, update = (parts[0] + (config.model.n_layer - 1) * (parts[-1] - parts[0]).clamp(min=0)).tolist()
    return compute / sequences, update
