"""Heads and the mask.

The heads of a layer divide the width of the model among them. The mask gives later keys a score of -inf, so that their
weights are exactly 0.
"""

import math

import torch
from torch import Tensor, nn

from minigpt.course.claims.claim import Claim, Finding, fmt, max_abs
from minigpt.course.claims.experiment import Experiment
from minigpt.course.small_models import EXACT, normal, randomize, sdpa_unmasked, small_attention
from minigpt.model.gpt import attention_weights


class OneHead(nn.Module):
    """One head as tutorials write it: three linear layers without bias, a tril mask, a softmax, and no scale."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.key, self.query, self.value = (nn.Linear(width, width, bias=False) for _ in range(3))

    def weights(self, x: Tensor, scale: float) -> Tensor:
        T = x.size(1)
        scores: Tensor = self.query(x) @ self.key(x).transpose(-2, -1) * scale  # (B, T, T)
        return scores.masked_fill(torch.ones(T, T).tril() == 0, -math.inf).softmax(dim=-1)

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        out: Tensor = self.weights(x, scale) @ self.value(x)  # (B, T, C)
        return out


def one_head_reference() -> Finding:
    """Run a short implementation with minigpt's weights. It matches minigpt's layer only once the scale is added."""
    layer, lecture = small_attention(97, n_head=1), randomize(lambda: OneHead(32), claim=97)
    w_q, w_k, w_v = layer.qkv.weight.chunk(3)
    lecture.query.weight, lecture.key.weight, lecture.value.weight = map(nn.Parameter, (w_q, w_k, w_v))
    x = normal(1, 10, 32, claim=97)
    unscaled, scaled = (max_abs(layer.proj(lecture(x, scale)) - layer(x)) for scale in (1.0, 1 / math.sqrt(32)))
    rows, columns = (max_abs(lecture.weights(x, 1.0).sum(dim) - 1) for dim in (-1, -2))
    measured = (
        f"the code differs from the model by {fmt(unscaled)}, or with 1/√d_k by {fmt(scaled)}; "
        f"row sums differ from 1 by at most {fmt(rows)}, column sums by up to {fmt(columns)}"
    )
    return Finding(unscaled > 0.01 and scaled < EXACT and rows < EXACT and columns > 0.1, measured)


NUMBER_OF_HEADS = Experiment(
    "heads",
    "attention#do-more-heads-help",
    "A model 128 wide trains for a minute, at equal size and time. With one head, its loss is {1 head}. With two and "
    "four heads, it is {2 heads} and {baseline}. With eight, it is {8 heads}.",
    lambda one, two, four, eight: max(two, four) < one and max(two, four) < eight,
)


def no_head_for_the_next() -> Finding:
    """Make each query equal to the next key. An encoder then attends to the next token; a decoder cannot."""
    keys = 30 * torch.eye(10, dtype=torch.float64)
    queries = keys.roll(-1, dims=0)  # query i equals key i + 1
    decoder = attention_weights(queries, keys).diagonal(1)  # (T - 1,), the weight of the next token
    encoder = sdpa_unmasked(queries[None], keys[None], torch.eye(10, dtype=torch.float64)[None], 0.0)[0].diagonal(1)
    measured = f"weight of the next token: {fmt(decoder.max())} in a decoder, {fmt(encoder.min())} in an encoder"
    return Finding(torch.count_nonzero(decoder).item() == 0 and encoder.min().item() > 0.99, measured)


CLAIMS = (
    Claim(
        108,
        "In a model 128 wide, two or four heads give a lower loss than one or eight",
        said="More heads give a better score.",
        mistake="Heads share the width of the model. "
        "The loss of eight heads of 16 channels is higher than that of two of 64.",
        trained=(NUMBER_OF_HEADS,),
    ),
    Claim(
        97,
        "The softmax of a head runs over the keys of each query, along a row of the scores",
        one_head_reference,
        said="The softmax of a head runs along the columns.",
        mistake="Each row belongs to a query and sums to 1. A short implementation also forgets the factor 1/√d_k.",
    ),
    Claim(
        35,
        "No head of a GPT attends to the next token",
        no_head_for_the_next,
        said="Some heads always attend to the next token.",
        mistake="Only an encoder such as BERT can have such heads. In a GPT the mask makes that weight exactly 0.",
    ),
)
