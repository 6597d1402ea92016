"""Choose how the loss is computed: as it is, compiled with torch.compile, or recorded as a CUDA graph."""

import warnings
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn

from minigpt.config.schema import RunConfig
from minigpt.errors import UserError
from minigpt.model.device import Runtime
from minigpt.model.gpt import GPT
from minigpt.text.batches import batch_at
from minigpt.text.tokenizer import Ids
from minigpt.training.learner import Learner, Loss


def choose_loss(learner: Learner, tokens: Ids, log: Callable[[str], None]) -> Loss:
    """Return the loss for batches of `tokens` (N,), compiled if the runtime says so and all processes can (collective).

    If `is_recordable`, record it. Raises UserError if that fails.
    """
    config, runtime = learner.config, learner.runtime
    is_recorded = is_recordable(config, runtime)
    if not (is_recorded or runtime.compile):
        return learner.mean_loss
    x, y = batch_at(tokens, config.model.context, config.train.sequences_at_once, seed=0, step=0)
    example = x.to(runtime.device), y.to(runtime.device)
    if is_recorded:
        return record_loss(learner.mean_loss, learner.model, example)
    loss = compile_loss(learner.mean_loss, learner.model, example, log)
    learner.optimizer.zero_grad()  # compiling ran a backward pass
    return loss if all(learner.processes.gather(loss != learner.mean_loss)) else learner.mean_loss


def compile_loss(loss: Loss, model: nn.Module, example: tuple[Tensor, Tensor], log: Callable[[str], None]) -> Loss:
    """Return `loss` compiled, or `loss` itself if compiling fails.

    Run the passes of an `example`, inputs and targets (B, T), so that failures show here.
    """
    log("compiling the network: 10 to 40 s, longer on a busy machine (runtime.compile=false skips this)")
    on_cpu = example[0].device.type == "cpu"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the compiler's remarks about itself
            # PyTorch compiles a function for at most eight shapes, and later shapes not at all. Forget other models.
            torch.compiler.reset()
            torch.use_deterministic_algorithms(torch.are_deterministic_algorithms_enabled())  # tells the compiler, too
            if on_cpu and isinstance(model, GPT):
                compiled = with_compiled_blocks(loss, model)
            else:
                compiled = torch.compile(loss, dynamic=False, fullgraph=True)
            compiled(*example).backward()
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # compilation can raise any exception type, and training works without it
        cause = getattr(error, "inner_exception", error)
        reason = next((line for line in str(cause).splitlines() if line.strip()), type(cause).__name__)
        log(f"compilation failed, continuing without it ({reason[:200]})")
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


class _Recordable(nn.Module):
    """The loss as a module with the model's parameters."""

    def __init__(self, loss: Loss, model: nn.Module) -> None:
        super().__init__()
        self.loss, self.model = loss, model

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.loss(x, y)


def is_recordable(config: RunConfig, runtime: Runtime) -> bool:
    """Return whether to use `record_loss`: a GPU computes each batch in one pass, and `runtime.compile` is auto."""
    is_one_pass = config.train.sequences_at_once == config.train.batch_size
    is_cuda = runtime.torch_device.type == "cuda"
    return is_cuda and config.runtime.compile == "auto" and is_one_pass and not runtime.compile


def record_loss(loss: Loss, model: nn.Module, example: tuple[Tensor, Tensor]) -> Loss:
    """Return `loss` with the GPU kernels of its forward and backward pass recorded as CUDA graphs.

    Python launches the kernels of a small network more slowly than a GPU runs them. A graph launches all at once,
    with bitwise identical results (https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs). Each backward
    pass overwrites the gradients of the pass before, so gradients cannot be accumulated. The parameters of `model` must
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
    except RuntimeError as error:  # continuing is not safe: PyTorch may still be recording
        problem = str(error).partition("\n")[0][:200]
        raise UserError(f"the GPU cannot record CUDA graphs ({problem}); set runtime.compile=false") from error
    recorded: Loss = module.forward
    del module.forward  # it refers to the module; without this cycle, the graphs are freed as soon as nobody uses them
    return recorded
