"""Switch off heads one at a time, and compare what the model predicts next."""

from collections.abc import Callable

import torch
from torch import Tensor

from minigpt.interpret.extract import capture_residual, patch_attention
from minigpt.model.gpt import GPT, eval_mode
from minigpt.model.kernels import SDPA
from minigpt.text.tokenizer import Ids

CLEAR = 0.5
"""Prefer predictions with at least this probability."""


@torch.no_grad()
def probabilities_without(model: GPT, ids: Ids, start: int) -> Tensor:
    """Return the next-token probabilities at the positions from `start` on, without each head.

    The first row has the probabilities of the whole model, the next rows those without head 0 of layer 0, head 1 of
    layer 0, and so on, (1 + L H, T - start, V). Switching off a head changes nothing in the layers below it, so these
    layers run once.
    """
    tokens = torch.from_numpy(ids.astype("int64"))[None]
    cos_sin = None if model.cos_sin is None else model.cos_sin[:, : len(ids)]
    with eval_mode(model), capture_residual(model) as residual:
        rows = [model(tokens)[:, start:].softmax(-1)]  # (1, T - start, V)

    for layer, x in enumerate(residual[:-1]):
        with eval_mode(model), patch_attention(model, _silence_each(layer)):
            for block in model.blocks[layer:]:
                x = block(x, cos_sin)  # (H, T, C)
            rows.append(model.unembed(x[:, start:]).softmax(-1))
    return torch.cat(rows).float()


def _silence_each(at: int) -> Callable[[int, SDPA], SDPA]:
    """Return a patch of layer `at`, whose output (1, H, T, D) becomes (H, H, T, D): element h is without head h."""

    def patch(layer: int, sdpa: SDPA) -> SDPA:
        def silenced(q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor:
            heads = q.size(1)
            y = sdpa(q, k, v, dropout).repeat(heads, 1, 1, 1)
            y[range(heads), range(heads)] = 0
            return y

        return silenced if layer == at else sdpa

    return patch


def strongest_effect(probabilities: Tensor, interest: Tensor, allowed: Tensor, preferred: Tensor) -> tuple[int, int]:
    """Return the position and the head for which switching off the head lowers the most likely prediction the most.

    Args:
        probabilities: As `probabilities_without` returns them, (1 + N, P, V).
        interest: The factor of the drop for each of the N heads, (N, P).
        allowed: Whether each of the N heads may be chosen, (N,).
        preferred: Which positions to prefer, (P,), if the whole model gives a prediction there at least `CLEAR`.

    Returns:
        The position, from 0 to P - 1, and the head, from 0 to N - 1.
    """
    usual, likeliest = probabilities[0].max(-1)  # (P,) each
    without = probabilities[1:].gather(-1, likeliest[None, :, None].expand(len(allowed), -1, 1))[..., 0]  # (N, P)
    drop = (usual - without) * interest
    clear = usual >= CLEAR
    choices = (clear & preferred, clear, torch.ones_like(clear))
    positions = next(choice for choice in choices if choice.any())
    drop = drop.masked_fill(~(allowed[:, None] & positions), -torch.inf)
    head, position = divmod(int(drop.argmax()), drop.size(1))
    return position, head
