"""The mask: a character that is to be predicted must not be seen.

A decoder predicts every next character of a text at once, so each position may use itself and the past, and
nothing after it. Before the softmax, every score of a later key is replaced by -inf, which the softmax makes an
exact 0. That is all that makes a decoder of an encoder.
"""

import math

import torch

from minigpt.claims.claim import Claim, Finding, figure, figures, largest
from minigpt.claims.material import ENCODER, EXACT, attend_to_all, gpt, normal
from minigpt.config.schema import FAMILIES
from minigpt.model.gpt import attention_weights, causal_mask
from minigpt.model.kernels import best_for


def mask_is_a_triangle() -> Finding:
    """Row i is what query i may see: ones up to the diagonal, zeros beyond."""
    mask = causal_mask(5, 5, torch.device("cpu"))
    by_hand = [[j <= i for j in range(5)] for i in range(5)]
    picture = " ".join("".join("1" if seen else "0" for seen in row) for row in mask.tolist())
    return Finding(mask.tolist() == by_hand and torch.equal(mask, torch.ones(5, 5).tril().bool()), picture)


def future_gets_nothing() -> Finding:
    """exp(-inf) is 0, not nearly 0: no score, however large, gets past the mask.

    The model computes with a fast kernel that keeps no weights. Given unit vectors as values, it shows them.
    """
    q, k = 10 * normal(2, 1, 8, 10, 10, claim=50)  # (B, H, T, D) each, with D = T
    weights = attention_weights(q, k)
    in_use = best_for(q.device).sdpa(q, k, torch.eye(10, dtype=q.dtype).expand(1, 8, 10, 10), 0.0)
    above = [part.triu(1).abs().max().item() for part in (weights, in_use)]
    measured = (
        f"largest weight above the diagonal {figures(above)}, below it {figure(weights.tril(-1).max())}; "
        f"the formula and the model's kernel agree to {figure(largest(weights - in_use))}"
    )
    return Finding(above == [0, 0] and largest(weights - in_use) < EXACT, measured)


def mask_before_softmax() -> Finding:
    """After the softmax it is too late: the future has had its share of the 1, and the rows are left with less."""
    q, k = normal(2, 6, 8, claim=51)
    unmasked = (q @ k.T / math.sqrt(8)).softmax(-1)
    after = unmasked.tril()
    before = attention_weights(q, k)
    mended = largest(after / after.sum(-1, keepdim=True) - before)
    measured = (
        f"rows sum to {figures(after.sum(-1).tolist())} masked after, {figure(before.sum(-1).min())} masked before; "
        f"divided by their sums they are the same to {figure(mended)}"
    )
    return Finding(after.sum(-1)[0].item() < 0.9 and largest(before.sum(-1) - 1) < EXACT and mended < EXACT, measured)


def no_leak() -> Finding:
    """Change all that comes after a place: if one bit of a prediction up to it changes, the model has looked ahead."""
    leak, changed = 0.0, math.inf
    for family in FAMILIES:
        model = gpt(49, **{"family": family, **FAMILIES[family], "zero_init": False})
        ids = torch.arange(24)[None] % 12
        for place in range(1, 24):
            other = torch.cat((ids[:, :place], 11 - ids[:, place:]), dim=1)
            difference = (model(ids) - model(other)).abs()[0]  # (T, V)
            leak, changed = max(leak, difference[:place].max().item()), min(changed, difference[place:].max().item())
    measured = (
        f"with another future, predictions up to here change by {figure(leak)}, later ones by {figure(changed)} or more"
    )
    return Finding(leak == 0 and changed > 0.01, measured)


def no_head_for_the_next() -> Finding:
    """Give each query exactly what its next neighbour offers: an encoder then has such a head, a decoder cannot."""
    keys = 30 * torch.eye(10, dtype=torch.float64)
    queries = keys.roll(-1, dims=0)  # query i is key i + 1
    decoder = attention_weights(queries, keys).diagonal(1)  # (T - 1,), the weight of the next
    encoder = attend_to_all(queries[None], keys[None], torch.eye(10, dtype=torch.float64)[None])[0].diagonal(1)
    measured = (
        f"weight of the next character: {figure(decoder.max())} in a decoder, {figure(encoder.min())} in an encoder"
    )
    return Finding(torch.count_nonzero(decoder).item() == 0 and encoder.min().item() > 0.99, measured)


def encoder_and_decoder() -> Finding:
    """The same weights, with the mask and without. In an encoder the last character reaches the first, here never."""
    ids = torch.arange(10)[None]
    other = torch.cat((ids[:, :-1], torch.tensor([[0]])), dim=1)
    model = gpt(54)
    decoder = largest(model(ids)[0, 0] - model(other)[0, 0])
    model.use(ENCODER)
    encoder = largest(model(ids)[0, 0] - model(other)[0, 0])
    pairs = causal_mask(10, 10, torch.device("cpu")).sum().item()
    measured = (
        f"another last character changes the first output by {figure(encoder)} in an encoder, by {figure(decoder)} "
        f"in a decoder, whose mask allows {pairs} of the 100 pairs"
    )
    return Finding(decoder == 0 and encoder > 1e-3 and pairs == 55, measured)


def all_prefixes_at_once() -> Finding:
    """Because nobody looks ahead, one pass predicts after each character what a pass over its prefix would."""
    model, ids = gpt(80), torch.arange(20)[None] % 12
    at_once = model(ids)[0]  # (T, V)
    one_by_one = torch.stack([model(ids[:, :length])[0, -1] for length in range(1, 21)])
    error = largest(at_once - one_by_one)
    return Finding(
        error < EXACT, f"one pass over 20 characters and 20 passes over their prefixes differ by {figure(error)}"
    )


CLAIMS = (
    Claim(52, "The mask is a lower triangle of ones.", ("004",), mask_is_a_triangle),
    Claim(50, "Scores of the future are set to -inf, so their weights are 0.", ("002", "004"), future_gets_nothing),
    Claim(51, "The mask comes after Q K^T and before the softmax.", ("002",), mask_before_softmax),
    Claim(49, "A decoder must not see the future.", ("002", "003", "004"), no_leak),
    Claim(
        35,
        "There are heads that always look at the next character.",
        ("000",),
        no_head_for_the_next,
        correction="In an encoder such as BERT there are; in a GPT the mask makes that weight exactly 0.",
    ),
    Claim(54, "An encoder has no mask, a decoder has one.", ("003",), encoder_and_decoder),
    Claim(80, "A transformer takes its whole input at once, not word by word.", ("001",), all_prefixes_at_once),
)
