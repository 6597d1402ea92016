"""Switch off heads one at a time, and compare what the model predicts next."""

from itertools import product

import torch
from torch import Tensor

from minigpt.interpret.extract import ablate_heads
from minigpt.model.gpt import GPT, eval_mode
from minigpt.text.tokenizer import Ids

CLEAR = 0.5
"""Prefer positions whose most likely token has at least this probability."""


@torch.no_grad()
def probabilities_without(model: GPT, ids: Ids, start: int) -> Tensor:
    """Return the next-token probabilities at the positions from `start` on, without each head, (1 + L H, T - start, V).

    The first row has the probabilities of the whole model, the next rows those without head 0 of layer 0, head 1 of
    layer 0, and so on.
    """
    tokens = torch.from_numpy(ids.astype("int64"))[None]
    heads = product(range(model.config.n_layer), range(model.config.n_head))
    rows = []
    for removed in (set[tuple[int, int]](), *({head} for head in heads)):
        with eval_mode(model), ablate_heads(model, removed):
            rows.append(model(tokens)[0, start:].softmax(-1))
    return torch.stack(rows).float()


def strongest_effect(probabilities: Tensor, interest: Tensor, allowed: Tensor, preferred: Tensor) -> tuple[int, int]:
    """Return the position and the head whose removal lowers the probability of the most likely token the most.

    Args:
        probabilities: As `probabilities_without` returns them, (1 + N, P, V).
        interest: The factor by which each drop counts, (N, P).
        allowed: The heads that may be chosen, (N,).
        preferred: The positions to prefer among those where the whole model's highest probability is at least `CLEAR`,
            (P,).
    """
    usual, likeliest = probabilities[0].max(-1)  # (P,) each
    without = probabilities[1:].gather(-1, likeliest[None, :, None].expand(len(allowed), -1, 1))[..., 0]  # (N, P)
    clear = usual >= CLEAR
    preference = clear.int() + (clear & preferred)
    may_be_chosen = allowed[:, None] & (preference == preference.max())
    score = ((usual - without) * interest).masked_fill(~may_be_chosen, -torch.inf)
    head, position = divmod(int(score.argmax()), len(usual))
    return position, head
