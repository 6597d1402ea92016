"""Compile the loss with torch.compile, if it runs and if it pays."""

import math
import time
import warnings
from collections.abc import Callable

import torch
from torch import Tensor


def compile_loss(
    loss: Callable[[Tensor, Tensor], Tensor], example: tuple[Tensor, Tensor], warn: Callable[[str], None]
) -> tuple[Callable[[Tensor, Tensor], Tensor], bool]:
    """Return `loss` compiled and True, or as it was and False after one warning when compilation fails.

    `example` is compiled for, forward and backward, so that a failure shows here and not within a step. It
    leaves gradients behind.
    """
    compiled = torch.compile(loss)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the compiler's remarks on its own internals
            compiled(*example).backward()
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # the compiler raises what its many parts raise, and none of it need stop a run
        cause = getattr(error, "inner_exception", error)  # torch wraps what the compiler's parts raise
        reason = next((line for line in str(cause).splitlines() if line.strip()), type(cause).__name__)
        warn(f"compilation failed, going on without ({reason[:200]})")
        return loss, False
    return compiled, True


def compiled_time(
    plain: Callable[[Tensor, Tensor], Tensor],
    compiled: Callable[[Tensor, Tensor], Tensor],
    example: tuple[Tensor, Tensor],
) -> float:
    """Return how many times as long as `plain` the same `compiled` takes, forward and backward, the best of three each.

    Only on a CPU; elsewhere 1, for nothing is known of compilation that does not pay there. Leaves gradients behind.
    """
    if example[0].device.type != "cpu":
        return 1.0
    best = {plain: math.inf, compiled: math.inf}
    for _ in range(3):
        for loss in best:
            torch.use_deterministic_algorithms(loss is compiled)  # as `choose` sets it for each
            started = time.perf_counter()
            loss(*example).backward()
            best[loss] = min(best[loss], time.perf_counter() - started)
    return best[compiled] / best[plain]
