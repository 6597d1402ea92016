"""Heads and the mask.

The heads of a layer divide the width of the model among them. The mask gives later keys a score of -inf, so that their
weights are exactly 0.
"""

import math

import torch
from claim import claim, fmt, trained
from models import EXACT, max_abs, normal, small_attention
from torch import Tensor


@claim(
    "In a model 128 wide, two or four heads give a lower loss than one or eight",
    said="More heads are better.",
    mistake="Heads share the width of the model. Eight heads of 16 channels give a higher loss than two of 64.",
)
@trained(
    "heads",
    "attention#do-more-heads-help",
    "Models 128 wide, of equal size, train for a minute. With one head, the loss is {1 head}. With two and "
    "four heads, it is {2 heads} and {baseline}. With eight, it is {8 heads}.",
    lambda one, two, four, eight: max(two, four) < min(one, eight),
)
def test_claim_heads() -> None: ...


@claim(
    "The softmax of a head runs over the keys of each query, along a row of the scores",
    said="The softmax of a head runs along the columns.",
    mistake="Each row belongs to a query and sums to 1.",
)
def test_claim_rows() -> str:
    """Run a short implementation with minigpt's weights. It matches minigpt's layer only with the factor 1/√d_k."""
    layer, x = small_attention(n_head=1), normal(1, 10, 32)
    q, k, v = (x @ weight.T for weight in layer.qkv.weight.chunk(3))  # (1, T, C)

    def weights(scale: float) -> Tensor:
        scores = q @ k.transpose(-2, -1) * scale  # (1, T, T)
        return scores.masked_fill(torch.ones(10, 10).tril() == 0, -math.inf).softmax(dim=-1)

    unscaled, scaled = (max_abs(layer.proj(weights(scale) @ v) - layer(x)) for scale in (1.0, 1 / math.sqrt(32)))
    rows, columns = (max_abs(weights(1.0).sum(dim) - 1) for dim in (-1, -2))
    assert unscaled > 0.01
    assert max(scaled, rows) < EXACT
    assert columns > 0.1
    return (
        f"the code differs from the model by {fmt(unscaled)}, or with 1/√d_k by {fmt(scaled)}; "
        f"row sums differ from 1 by at most {fmt(rows)}, column sums by up to {fmt(columns)}"
    )
