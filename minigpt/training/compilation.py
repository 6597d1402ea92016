"""Make the loss faster: compiled with torch.compile, or recorded as a CUDA graph."""

import math
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import cast

import torch
from torch import Tensor, nn

from minigpt.config.schema import RunConfig
from minigpt.errors import UserError
from minigpt.model.device import Runtime
from minigpt.model.gpt import GPT

Loss = Callable[[Tensor, Tensor], Tensor]
"""The mean loss of targets (B, T) given inputs (B, T)."""
REPORT_SECONDS = 30.0
"""Seconds between two lines while compiling."""
MAX_RATIO = 1.1
"""Keep the compiled loss if its time is at most this multiple of the plain time: short timings are noisy."""


def compile_loss(
    loss: Loss, model: nn.Module, example: tuple[Tensor, Tensor], *, is_optional: bool, log: Callable[[str], None]
) -> Loss:
    """Return `loss` compiled, or `loss` itself if compiling fails or, if `is_optional`, does not make it faster.

    The passes of an `example`, inputs and targets (B, T), show failures here. `log` receives a line for each decision.
    """
    log("compiling the network: 10 to 40 s, longer on a busy machine (runtime.compile=false skips this)")
    on_cpu = example[0].device.type == "cpu"
    try:
        with warnings.catch_warnings(), _reports(log):
            warnings.simplefilter("ignore")  # the compiler's remarks about itself
            # PyTorch compiles a function for at most eight shapes, and later shapes not at all. Forget other models.
            torch.compiler.reset()
            torch.use_deterministic_algorithms(torch.are_deterministic_algorithms_enabled())  # tells the compiler, too
            if on_cpu and isinstance(model, GPT):
                compiled = with_compiled_blocks(loss, model)
            else:
                compiled = torch.compile(loss, dynamic=False)
            compiled(*example).backward()
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # compilation can raise any exception type, and training works without it
        cause = getattr(error, "inner_exception", error)
        reason = next((line for line in str(cause).splitlines() if line.strip()), type(cause).__name__)
        log(f"compilation failed, continuing without it ({reason[:200]})")
        return loss
    if is_optional and (ratio := time_ratio(compiled, loss, example)) >= MAX_RATIO:
        log(f"a compiled step takes {ratio:.2f} times as long here; continuing without compilation")
        return loss
    return compiled


def with_compiled_blocks(loss: Loss, model: GPT) -> Loss:
    """Return `loss` with the blocks of `model` compiled.

    The blocks share one compiled function. Compiling it takes a fraction of the time that compiling the whole loss
    takes, and a step takes little longer
    (https://docs.pytorch.org/tutorials/recipes/regional_compilation.html).
    """
    plain, fast = model.run_block, torch.compile(model.run_block, dynamic=False, fullgraph=True)

    def compiled(x: Tensor, y: Tensor) -> Tensor:
        model.run_block = fast
        try:
            return loss(x, y)
        finally:
            model.run_block = plain

    return compiled


@contextmanager
def _reports(log: Callable[[str], None]) -> Iterator[None]:
    """While the block runs, say from time to time that it does."""
    is_done, started = threading.Event(), time.perf_counter()

    def report() -> None:
        while not is_done.wait(REPORT_SECONDS):
            log(f"still compiling after {time.perf_counter() - started:.0f} s")

    thread = threading.Thread(target=report, name="compiling", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_done.set()
        thread.join()


def time_ratio(compiled: Loss, plain: Loss, example: tuple[Tensor, Tensor]) -> float:
    """Return the time of `compiled` as a multiple of the time of `plain`, forward and backward, best of three each."""
    best = {plain: math.inf, compiled: math.inf}
    for loss in (plain, compiled) * 3:
        torch.use_deterministic_algorithms(loss is compiled)  # only compiled runs need it; `Learner.use` sets it last
        started = time.perf_counter()
        loss(*example).backward()
        best[loss] = min(best[loss], time.perf_counter() - started)
    return best[compiled] / best[plain]


class _Recordable(nn.Module):
    """The loss as a module with the model's parameters."""

    def __init__(self, loss: Loss, model: nn.Module) -> None:
        super().__init__()
        self.loss, self.model = loss, model

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.loss(x, y)


def is_recordable(config: RunConfig, runtime: Runtime) -> bool:
    """Return whether to use `record_loss`: a GPU computes each batch in one pass, and the user did not decide."""
    is_one_pass = config.train.sequences_at_once == config.train.batch_size
    is_plain = not (runtime.compile or config.runtime.activation_checkpointing)
    return runtime.torch_device.type == "cuda" and config.runtime.compile == "auto" and is_one_pass and is_plain


def record_loss(loss: Loss, model: nn.Module, example: tuple[Tensor, Tensor]) -> Loss:
    """Return `loss` with the GPU kernels of its forward and backward pass recorded as CUDA graphs.

    Python launches the kernels of a small network more slowly than a GPU runs them. A graph launches all of them at
    once, and computes the same bits (https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs). Each backward
    pass overwrites the gradients of the one before, so gradients cannot be accumulated. The parameters of `model` must
    stay in the same memory, and all batches have the shape of the `example`, inputs and targets (B, T).

    Raises:
        UserError: The GPU or its driver cannot record CUDA graphs.
    """
    # PyTorch records on a stream of its own, and later warns that gradients come from another one.
    warnings.filterwarnings("ignore", "The AccumulateGrad node's stream")
    try:
        module = cast(nn.Module, torch.cuda.make_graphed_callables(_Recordable(loss, model), example))
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:  # training on is not safe: PyTorch may still be recording
        problem = str(error).partition("\n")[0][:200]
        raise UserError(f"the GPU cannot record CUDA graphs ({problem}); set runtime.compile=false") from error
    recorded: Loss = module.forward
    del module.forward  # it refers to the module; without this cycle, the graphs are freed as soon as nobody uses them
    return recorded
