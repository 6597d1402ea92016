"""Measure how strongly a prediction depends on earlier inputs: the norm of the gradient, by distance.

Gradients through a recurrent network can shrink or grow exponentially with the distance (Bengio, Simard and Frasconi
1994, https://doi.org/10.1109/72.279181). Attention has a direct path to each input.

Letters in shapes: B windows, T positions, C width.
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minigpt.model.gpt import eval_mode
from minigpt.model.load import Model
from minigpt.text.tokenizer import Ids
from minigpt.training.evaluate import MAX_TOKENS


def spread_windows(tokens: Ids, context: int, count: int) -> Tensor:
    """Return up to `count` windows of `context` + 1 tokens, (B, T + 1), spread evenly over `tokens`."""
    starts = len(tokens) - context  # the number of possible windows
    firsts = np.linspace(0, starts - 1, min(count, max(0, starts))).astype(np.int64)
    return torch.from_numpy(tokens[firsts[:, None] + np.arange(context + 1)].astype(np.int64))


def gradient_by_distance(model: Model, windows: Tensor) -> Tensor:
    """Return the norm of the gradient of the last prediction's loss with respect to each input, by distance.

    The input is the output of the token embedding. Dropout is off.

    Args:
        model: The model, of any family.
        windows: T inputs and the last target of each window, (B, T + 1). Only the loss at the last position counts.

    Returns:
        The mean norm over the windows, in nats per unit of the embedding, (T,). Entry 0 is for the last input, which
        directly precedes the predicted token; entry d is for the input d tokens earlier.
    """
    inputs: list[Tensor] = []

    def record(module: nn.Module, ids: tuple[Tensor], x: Tensor) -> Tensor:
        inputs.append(x.detach().requires_grad_())  # (B, T, C)
        return inputs[-1]

    device, count = model.token_embedding.weight.device, windows.size(1) - 1
    norms = torch.zeros(count, dtype=torch.float64)
    hook = model.token_embedding.register_forward_hook(record)
    try:
        # cuDNN's recurrent layers have no backward pass in eval mode.
        with eval_mode(model), torch.enable_grad(), torch.backends.cudnn.flags(enabled=False):
            for part in windows.to(device).split(max(1, MAX_TOKENS[device.type] // count)):
                logits = model(part[:, :-1])[:, -1]  # (B, V)
                loss = F.cross_entropy(logits.float(), part[:, -1], reduction="sum")
                (gradient,) = torch.autograd.grad(loss, inputs.pop())  # (B, T, C)
                norms += gradient.norm(dim=-1).sum(0).cpu()
    finally:
        hook.remove()
    return norms.flip(0) / len(windows)
