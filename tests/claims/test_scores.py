"""Scores, softmax and values.

A head compares each query with each key, turns the scores into weights, and adds up the values:

    attention(Q, K, V) = softmax(Q K^T / sqrt(d_k)) V        (Vaswani et al. 2017, section 3.2.1)

Queries, keys and values are linear maps of the same vectors x, one per position: q = x W_Q, k = x W_K, v = x W_V.
"""

import math

import torch
from claim import claim, fmt, trained
from models import EXACT, max_abs, normal, small_attention

from minigpt.model.gpt import attention_weights


@claim(
    "Scaling prevents vanishing gradients through the softmax",
    said="Dividing by √d_k prevents exploding gradients.",
    mistake="A softmax never amplifies gradients. A saturated one blocks them.",
)
@trained(
    "scale",
    "attention#does-attention-need-its-scale",
    "A small GPT-2 trains for half a minute. With initial weights of queries, keys and values that are ten times as "
    "large, its loss is {unscaled, large weights} without the scale. With the scale, it is {large weights}. With the "
    "usual weights, scores are small anyway. The loss is then lower without the scale, {unscaled} and not {baseline}.",
    lambda unscaled_large, large, unscaled, scaled: unscaled_large > large + 0.1 and unscaled < scaled,
)
def test_claim_scale() -> str:
    """Compute the largest factor by which a softmax multiplies a gradient. It is at most 1/2 at any scale.

    For weights a, the Jacobian of the softmax is diag(a) - a a^T, and the factor is its largest eigenvalue. If one key
    gets nearly all the weight, the Jacobian is close to zero and the query learns almost nothing. The scale also
    multiplies the gradients of q and k. Without it, the gradients that get through are larger, but still bounded.
    """
    q, k = normal(2, 256, 256)  # 256 queries and keys with d_k = 256
    largest, blocked = {}, {}
    for scaled in (False, True):
        undo = 1.0 if scaled else math.sqrt(256)  # cancels the division in attention_weights
        weights = attention_weights(undo * q[:64, None], k)[:, 0]  # each is a last query, which sees all keys
        jacobian = torch.diag_embed(weights) - weights[:, :, None] * weights[:, None, :]  # (queries, keys, keys)
        factor = torch.linalg.eigvalsh(jacobian)[:, -1]  # (queries,)
        largest[scaled], blocked[scaled] = factor.max().item(), (factor < 0.01).double().mean().item()
    assert max(largest.values()) <= 0.5 + EXACT
    assert blocked[False] > 0.2
    assert blocked[True] == 0
    return (
        f"largest factor at d_k = 256: {fmt(largest[False])} unscaled, {fmt(largest[True])} scaled;"
        f" below 0.01 for {blocked[False]:.0%} of queries unscaled, {blocked[True]:.0%} scaled"
    )


@claim(
    "d_k is the head size: the model width divided by the number of heads",
    said="The scores are divided by √768, the square root of the model width; or d_k is 512 / len(seq).",
    mistake="Only with a single head is d_k the model width. The length of the sequence does not matter.",
)
def test_claim_head_size() -> str:
    """Try three values of d_k in the explicit formula. Only the head size gives the output of the model's layer."""
    width, heads, length = 768, 12, 6
    layer = small_attention(n_embd=width, n_head=heads)
    x = normal(1, length, width)
    q, k, v = layer.queries_keys_values(x)  # (1, H, T, D)
    future = torch.ones(length, length).triu(1).bool()
    output = layer(x)
    errors = []
    for d_k in (width / heads, width, 512 / length):
        scores = (q @ k.mT / math.sqrt(d_k)).masked_fill(future, -math.inf)
        errors.append(max_abs(layer.proj((scores.softmax(-1) @ v).transpose(1, 2).flatten(2)) - output))
    assert errors[0] < EXACT
    assert min(errors[1:]) > 0.01
    return f"with √64, √768 and √(512/6) the formula differs from the model by {fmt(errors)}"


@claim(
    "Without the softmax, a small GPT learns, but its loss is higher",
    said="The softmax may be unnecessary, as linear attention shows.",
    mistake="Linear attention shows that a model can learn without the softmax, not that nothing is lost.",
)
@trained(
    "attention-kinds",
    "attention#does-attention-need-the-softmax",
    "After a minute of training, the loss is {relu - baseline} higher with ReLU instead of the softmax, "
    "and {linear - baseline} higher with linear attention.",
    lambda relu, linear: 0 < relu < linear,
)
def test_claim_softmax() -> None: ...
