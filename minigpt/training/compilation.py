"""Compile the loss with torch.compile, if that works and pays."""

import math
import time
import warnings
from collections.abc import Callable

import torch
from torch import Tensor

Loss = Callable[[Tensor, Tensor], Tensor]
"""The mean loss of targets (B, T) given inputs (B, T)."""
MAX_RATIO = 1.1
"""Keep the compiled loss if its time is at most this multiple of the plain one: short timings are noisy."""


def compile_loss(loss: Loss, example: tuple[Tensor, Tensor], *, is_optional: bool, log: Callable[[str], None]) -> Loss:
    """Return `loss` compiled, or `loss` itself if compiling fails or, if `is_optional`, does not make it faster.

    Args:
        example: Inputs and targets (B, T) to compile for, forward and backward, so that failures show here.
        is_optional: Whether the user left the choice to minigpt.
        log: Receives one line for each decision.
    """
    log("compiling the network (runtime.compile=false skips this)")
    compiled = torch.compile(loss)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the compiler's remarks about itself
            compiled(*example).backward()
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # compilation can raise any exception type, and training works without it
        cause = getattr(error, "inner_exception", error)
        reason = next((line for line in str(cause).splitlines() if line.strip()), type(cause).__name__)
        log(f"compilation failed, continuing without it ({reason[:200]})")
        return loss
    can_be_slower = example[0].device.type == "cpu"
    if is_optional and can_be_slower and (ratio := time_ratio(compiled, loss, example)) >= MAX_RATIO:
        log(f"a compiled step takes {ratio:.2f} times as long here; continuing without compilation")
        return loss
    return compiled


def time_ratio(compiled: Loss, plain: Loss, example: tuple[Tensor, Tensor]) -> float:
    """Return the time of `compiled` as a multiple of that of `plain`, forward and backward, best of three each."""
    best = {plain: math.inf, compiled: math.inf}
    for loss in (plain, compiled) * 3:
        torch.use_deterministic_algorithms(loss is compiled)  # only compiled runs need it; `Learner.use` sets it last
        started = time.perf_counter()
        loss(*example).backward()
        best[loss] = min(best[loss], time.perf_counter() - started)
    return best[compiled] / best[plain]
